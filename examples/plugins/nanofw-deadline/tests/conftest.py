pytest_plugins = ["nanofw.testing.plugin"]

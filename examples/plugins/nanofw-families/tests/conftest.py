pytest_plugins = ["nanofw.testing.pytest_plugin"]

"""What a folder with a model says of it: `config.json` and the files beside it."""

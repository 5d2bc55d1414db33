"""Several engines of one model behind one router: `engine.replicas`."""

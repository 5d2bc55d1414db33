"""Several engines of one model behind one front: `engine.replicas`."""

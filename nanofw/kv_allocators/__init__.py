"""Where the keys and values of requests live: one allocator per file. numpy, no torch."""

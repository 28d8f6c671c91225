"""The public methods, one file per topic, each a mixin written against the protocol."""

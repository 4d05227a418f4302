//! On the node itself, as root.

//! Writers of what others read.

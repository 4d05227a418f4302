//! What will come if nothing is done.

//! Kernel log lines that mean something.

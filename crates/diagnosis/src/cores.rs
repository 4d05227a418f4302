//! What each core did, who owned it and who waited for it, derived from the evidence.

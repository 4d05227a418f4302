//! The committed BPF objects. Tests load them from `CORONER_BPF_DIR` instead, if set: `./check` tests objects built by another
//! clang.

/// The object `bpf/$name`.
macro_rules! bpf_object {
    ($name:literal) => {
        $crate::bpf::committed::chosen(
            $name,
            aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/", $name)),
        )
    };
}
pub(crate) use bpf_object;

#[cfg(not(test))]
pub(crate) fn chosen(_name: &'static str, committed: &'static [u8]) -> &'static [u8] {
    committed
}

#[cfg(test)]
pub(crate) fn chosen(name: &'static str, committed: &'static [u8]) -> &'static [u8] {
    use std::collections::BTreeMap;
    use std::sync::{LazyLock, Mutex};
    static REBUILT: LazyLock<Mutex<BTreeMap<&'static str, &'static [u8]>>> = LazyLock::new(Mutex::default);
    let Some(dir) = std::env::var_os("CORONER_BPF_DIR") else { return committed };
    let path = std::path::Path::new(&dir).join(name);
    let read = || std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // Read once, kept until the tests end.
    REBUILT.lock().unwrap().entry(name).or_insert_with(|| read().leak())
}

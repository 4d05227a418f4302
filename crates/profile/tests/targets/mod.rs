//! What must hold for any bytes. The fuzz targets (`fuzz/`) and the corpus test run these functions; each panics on a violation.

#![allow(dead_code)] // Each includer uses a part.

mod importers;
mod memory;
pub mod perf_file;
mod views;

pub use memory::peak;

/// One function that takes any bytes.
pub struct Target {
    /// Also the name of its directory in `fuzz/corpus`.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Memory limit: `times` the input plus `plus`.
    pub times: usize,
    pub plus: usize,
}

pub const MB: usize = 1 << 20;

pub const ALL: &[Target] = &[
    Target { name: "perf_script", run: importers::perf_script, times: 300, plus: 8 * MB },
    Target { name: "perf_data", run: importers::perf_data, times: 300, plus: 16 * MB },
    Target { name: "folded", run: importers::folded, times: 300, plus: 8 * MB },
    Target { name: "gz", run: importers::gz, times: 300, plus: 8 * MB },
    Target { name: "file", run: importers::file, times: 300, plus: 16 * MB },
    Target { name: "perf_map", run: importers::perf_map, times: 50, plus: MB },
    Target { name: "kallsyms", run: importers::kallsyms, times: 50, plus: MB },
    Target { name: "recording", run: importers::recording, times: 300, plus: 64 * MB },
    Target { name: "views", run: views::views, times: 8000, plus: 192 * MB },
];

impl Target {
    /// Runs it and checks its memory use.
    pub fn check(&self, bytes: &[u8]) {
        let ((), peak) = peak(|| (self.run)(bytes));
        let most = self.times * bytes.len() + self.plus;
        assert!(peak <= most, "{} took {peak} bytes of memory for {} bytes of input", self.name, bytes.len());
    }

    pub fn named(name: &str) -> &'static Target {
        ALL.iter().find(|target| target.name == name).expect("a target")
    }
}

//! Symbols of programs and libraries, by blazesym.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};

pub(super) struct ElfSymbols {
    symbolizer: Symbolizer,
    /// Which file stands for a recorded path and build id; `None` if none does.
    files: HashMap<(String, Option<Vec<u8>>), Option<PathBuf>>,
}

impl Default for ElfSymbols {
    fn default() -> ElfSymbols {
        let symbolizer = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).enable_auto_reload(false);
        ElfSymbols { symbolizer: symbolizer.build(), files: HashMap::new() }
    }
}

impl ElfSymbols {
    /// The function at an offset into the file. An error is said once for each file.
    pub fn find(
        &mut self,
        root: &Path,
        path: &str,
        build_id: Option<&[u8]>,
        file_offset: u64,
    ) -> Result<Option<String>, String> {
        let key = (path.to_owned(), build_id.map(<[u8]>::to_vec));
        if !self.files.contains_key(&key) {
            let (file, problem) = match file_for(root, path, build_id) {
                Ok(file) => (Some(file), None),
                Err(problem) => (None, Some(problem)),
            };
            self.files.insert(key.clone(), file);
            if let Some(problem) = problem {
                return Err(problem);
            }
        }
        let Some(Some(file)) = self.files.get(&key) else { return Ok(None) };
        let source = Source::Elf(Elf::new(file));
        match self.symbolizer.symbolize_single(&source, Input::FileOffset(file_offset)) {
            Ok(symbolized) => Ok(symbolized.into_sym().map(|symbol| symbol.name.into_owned())),
            Err(error) => {
                let problem = format!("{path}: {error}");
                self.files.insert(key, None);
                Err(problem)
            }
        }
    }
}

/// The file itself if its build id is the recorded one, else perf's cache of files (`~/.debug`) or the distribution's debug files.
fn file_for(root: &Path, path: &str, build_id: Option<&[u8]>) -> Result<PathBuf, String> {
    let file = root.join(path.trim_start_matches('/'));
    let Some(build_id) = build_id.filter(|id| id.len() > 2) else {
        return if file.is_file() { Ok(file) } else { Err(format!("{path}: no such file; its functions stay unnamed")) };
    };
    let on_disk = || blazesym::helper::read_elf_build_id(&file).ok().flatten();
    let there = file.is_file();
    if there && on_disk().is_some_and(|id| id.as_ref() == build_id) {
        return Ok(file);
    }
    let hex: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = hex.split_at(2);
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let candidates = [
        home.join(format!(".debug/.build-id/{first}/{rest}/elf")),
        root.join(format!("usr/lib/debug/.build-id/{first}/{rest}.debug")),
    ];
    candidates.into_iter().find(|candidate| candidate.is_file()).ok_or_else(|| match there {
        true => format!("{path}: is not the file that ran (other build id {hex}); its functions stay unnamed"),
        false => format!("{path}: no such file, nor one with build id {hex}; its functions stay unnamed"),
    })
}

//! File names as the BPF program sends them: component by component, the file's own name first, and only the part that differs
//! from the previous directory.
//!
//! They share one buffer: a string for each of tens of thousands of files would cost more than finding them.

use super::slots::PathEnd;

/// A file's place within its file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Within {
    Directory {
        directory: u32,
        name: Text,
    },
    /// In no directory: memfd and the like.
    Nowhere(Text),
}

/// A range of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text {
    start: usize,
    length: usize,
}

#[derive(Debug, Default)]
pub(super) struct FileNames {
    text: Vec<u8>,
    directories: Vec<String>,
    /// The directory of the previous path.
    last: Option<u32>,
    /// Of the current path.
    components: Vec<Text>,
    told: Vec<u8>,
}

/// Stands for the unknown part of a path.
const UNKNOWN: &str = "…";

impl FileNames {
    /// Forgets the previous paths.
    pub fn begin(&mut self) {
        self.next_path();
        self.last = None;
    }

    /// Starts another path.
    pub fn next_path(&mut self) {
        self.components.clear();
        self.told.clear();
    }

    /// Adds a component. The last one completes the file's place, unless it is unsure.
    pub fn add(&mut self, name: &[u8], end: PathEnd, unsure: bool) -> Option<Within> {
        self.components.push(Text { start: self.told.len(), length: name.len() });
        self.told.extend_from_slice(name);
        if end == PathEnd::More {
            return None;
        }
        let within = if unsure { None } else { self.place(end) };
        self.last = match within {
            Some(Within::Directory { directory, .. }) if end != PathEnd::Cut => Some(directory),
            _ => None,
        };
        self.next_path();
        within
    }

    fn place(&mut self, end: PathEnd) -> Option<Within> {
        // The last component up to the root is the root itself: `/`, or the name of something without a directory.
        let root = usize::from(end == PathEnd::Root);
        let name = *self.components.first()?;
        let above = self.components.get(1..self.components.len() - root).unwrap_or_default();
        let bytes = self.told.get(name.start..name.start + name.length).unwrap_or_default();
        let name = Text { start: self.text.len(), length: name.length };
        self.text.extend_from_slice(bytes);
        if self.components.len() == root {
            return Some(Within::Nowhere(name));
        }
        if let (PathEnd::SameDirectory, Some(directory), []) = (end, self.last, above) {
            return Some(Within::Directory { directory, name });
        }
        let mut path = match end {
            PathEnd::Root => String::new(),
            PathEnd::SameDirectory => self.last.map_or(UNKNOWN, |d| self.directory(d)).to_owned(),
            PathEnd::Cut | PathEnd::More => UNKNOWN.to_owned(),
        };
        for part in above.iter().rev() {
            path.push('/');
            let bytes = self.told.get(part.start..part.start + part.length).unwrap_or_default();
            path.push_str(&String::from_utf8_lossy(bytes));
        }
        self.directories.push(path);
        Some(Within::Directory { directory: self.directories.len() as u32 - 1, name })
    }

    fn directory(&self, index: u32) -> &str {
        self.directories.get(index as usize).map_or("", String::as_str)
    }

    /// Writes the name, or the path within the file system, into `to`.
    pub fn write(&self, within: Within, to: &mut String) {
        to.clear();
        let name = match within {
            Within::Nowhere(name) => name,
            Within::Directory { directory, name } => {
                to.push_str(self.directory(directory));
                to.push('/');
                name
            }
        };
        let bytes = self.text.get(name.start..name.start + name.length).unwrap_or_default();
        to.push_str(&String::from_utf8_lossy(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(names: &mut FileNames, components: &[&str], end: PathEnd, unsure: bool) -> Option<String> {
        let (last, before) = components.split_last().unwrap();
        for name in before {
            assert_eq!(names.add(name.as_bytes(), PathEnd::More, false), None);
        }
        let within = names.add(last.as_bytes(), end, unsure)?;
        let mut text = String::new();
        names.write(within, &mut text);
        Some(text)
    }

    #[test]
    fn a_shared_directory_is_sent_once() {
        let mut names = FileNames::default();
        let mut add = |components: &[&str], end, unsure| told(&mut names, components, end, unsure);
        assert_eq!(add(&["f", "d", "/"], PathEnd::Root, false).as_deref(), Some("/d/f"));
        assert_eq!(add(&["g"], PathEnd::SameDirectory, false).as_deref(), Some("/d/g"));
        assert_eq!(add(&["h", "e"], PathEnd::SameDirectory, false).as_deref(), Some("/d/e/h"));
        assert_eq!(add(&["i"], PathEnd::SameDirectory, false).as_deref(), Some("/d/e/i"));
        assert_eq!(add(&["top", "/"], PathEnd::Root, false).as_deref(), Some("/top"));
        assert_eq!(add(&["memfd:x"], PathEnd::Root, false).as_deref(), Some("memfd:x"));
        assert_eq!(add(&["j"], PathEnd::SameDirectory, false).as_deref(), Some("…/j"), "no directory before it");
        assert_eq!(add(&["k", "deep"], PathEnd::Cut, false).as_deref(), Some("…/deep/k"));
        assert_eq!(add(&["l", "d", "/"], PathEnd::Root, true), None);
        assert_eq!(add(&["m"], PathEnd::SameDirectory, false).as_deref(), Some("…/m"), "an unsure path is dropped");
    }

    proptest! {
        #[test]
        fn anything(parts in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..5), 0usize..4, any::<bool>(), 0u8..9), 0..40)) {
            let mut names = FileNames::default();
            let mut text = String::new();
            for (name, end, unsure, begin) in parts {
                match begin {
                    0 => names.begin(),
                    1 => names.next_path(),
                    _ => {}
                }
                let end = [PathEnd::More, PathEnd::Root, PathEnd::SameDirectory, PathEnd::Cut][end];
                if let Some(within) = names.add(&name, end, unsure) {
                    names.write(within, &mut text);
                }
            }
        }
    }
}

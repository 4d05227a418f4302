//! rpm's own database format "ndb" (rpm's lib/backend/ndb/rpmpkg.c), used by SUSE: pages of 16-byte slots at the front give the
//! location of each package's blob. All numbers are little-endian.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;

use coroner_evidence::Package;

use super::{PathSet, each_database, invalid, rpm_header};
use crate::tree::Tree;

pub const PATHS: &[&str] = &["/usr/lib/sysimage/rpm/Packages.db", "/var/lib/rpm/Packages.db"];

const PAGE: u64 = 4096;
const BLOCK: u64 = 16;
const HEADER_MAGIC: &[u8] = b"RpmP";
const SLOT_MAGIC: &[u8] = b"Slot";
const BLOB_MAGIC: &[u8] = b"BlbS";
/// 16 MiB of slots: a million packages.
const MAX_SLOT_PAGES: u32 = 4096;
const MAX_BLOB: u32 = 256 << 20;

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

pub fn find(tree: &Tree, wanted: &PathSet, owners: &mut HashMap<String, Package>) -> io::Result<()> {
    each_database(tree, PATHS, |place| find_in(&tree.open_place(place)?, wanted, owners))
}

fn find_in(file: &impl ReadAt, wanted: &PathSet, owners: &mut HashMap<String, Package>) -> io::Result<()> {
    let mut header = [0; 32];
    file.read_at_exactly(&mut header, 0)?;
    if !header.starts_with(HEADER_MAGIC) {
        return Err(invalid("not an rpm ndb database"));
    }
    if le32(&header, 4) != 0 {
        return Err(invalid("unsupported version of the ndb format"));
    }
    let pages = le32(&header, 12);
    if pages == 0 || pages > MAX_SLOT_PAGES {
        return Err(invalid("an impossible number of slot pages"));
    }
    let mut slots = vec![0; pages as usize * PAGE as usize];
    file.read_at_exactly(&mut slots, 0)?;
    // The file header occupies the first two slots.
    for slot in slots[32..].chunks_exact(16) {
        let (index, offset, blocks) = (le32(slot, 4), le32(slot, 8), le32(slot, 12));
        if !slot.starts_with(SLOT_MAGIC) {
            return Err(invalid("a slot is damaged"));
        }
        if offset == 0 || blocks == 0 {
            continue;
        }
        let at = u64::from(offset) * BLOCK;
        let mut head = [0; 16];
        file.read_at_exactly(&mut head, at)?;
        let bytes = le32(&head, 12);
        if !head.starts_with(BLOB_MAGIC) || le32(&head, 4) != index || bytes > MAX_BLOB {
            return Err(invalid("a package is damaged"));
        }
        if u64::from(bytes) > u64::from(blocks) * BLOCK {
            return Err(invalid("a package is longer than its slot says"));
        }
        let mut blob = vec![0; bytes as usize];
        file.read_at_exactly(&mut blob, at + 16)?;
        rpm_header::find(&blob, wanted, owners)?;
    }
    Ok(())
}

/// Lets tests read from memory.
pub trait ReadAt {
    fn read_at_exactly(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;
}

impl ReadAt for std::fs::File {
    fn read_at_exactly(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(buffer, at)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at_exactly(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let end = usize::try_from(at).ok().and_then(|at| Some(at..at.checked_add(buffer.len())?));
        match end.and_then(|range| self.get(range)) {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A database with these blobs.
    fn database(blobs: &[Vec<u8>]) -> Vec<u8> {
        let mut file = vec![0; PAGE as usize];
        file[..4].copy_from_slice(HEADER_MAGIC);
        file[12..16].copy_from_slice(&1u32.to_le_bytes());
        for slot in file[32..].chunks_exact_mut(16) {
            slot[..4].copy_from_slice(SLOT_MAGIC);
        }
        for (i, blob) in blobs.iter().enumerate() {
            let (index, at) = (i as u32 + 1, file.len());
            file.extend(BLOB_MAGIC);
            for n in [index, 0, blob.len() as u32] {
                file.extend(n.to_le_bytes());
            }
            file.extend(blob);
            file.resize(file.len().next_multiple_of(16) + 16, 0);
            let blocks = ((file.len() - at) / 16) as u32;
            let slot = 32 + i * 16;
            for (k, n) in [index, (at / 16) as u32, blocks].into_iter().enumerate() {
                file[slot + 4 + k * 4..slot + 8 + k * 4].copy_from_slice(&n.to_le_bytes());
            }
        }
        file
    }

    #[test]
    fn packages_are_found_through_slots() {
        let blobs = [
            rpm_header::tests::header("other", "1", "1", &["/etc/x"]),
            rpm_header::tests::header("agent", "2.0", "3", &["/usr/lib/systemd/system/agent.service"]),
        ];
        let mut owners = HashMap::new();
        let path = "/usr/lib/systemd/system/agent.service".to_owned();
        find_in(&database(&blobs), &PathSet::new(std::slice::from_ref(&path)), &mut owners).unwrap();
        assert_eq!(owners[&path].name, "agent");
        assert_eq!(owners[&path].version.as_deref(), Some("2.0-3"));
    }

    proptest! {
        #[test]
        fn any_damage(at in 0usize..5000, bytes in prop::collection::vec(any::<u8>(), 1..40), cut in 0usize..6000) {
            let mut file = database(&[rpm_header::tests::header("a", "1", "1", &["/etc/x"])]);
            for (i, b) in bytes.into_iter().enumerate() {
                if let Some(place) = file.get_mut(at + i) {
                    *place = b;
                }
            }
            file.truncate(cut.max(1));
            let _ = find_in(&file, &PathSet::new(&["/etc/x".to_owned()]), &mut HashMap::new());
        }
    }
}

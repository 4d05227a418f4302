//! rpm's Berkeley DB (/var/lib/rpm/Packages), used before rpm 4.16, e.g. by Amazon Linux 2, CentOS 7 and 8: hash pages, whose values
//! are stored in chains of overflow pages (Berkeley DB's dbinc/db_page.h).

use std::collections::HashMap;
use std::io;

use coroner_evidence::Package;

use super::rpm_ndb::ReadAt;
use super::{PathSet, each_database, invalid, rpm_header};
use crate::tree::Tree;

pub const PATHS: &[&str] = &["/var/lib/rpm/Packages", "/usr/lib/sysimage/rpm/Packages"];

const HASH_MAGIC: u32 = 0x0006_1561;
const PAGE_HEADER: usize = 26;
/// Page types.
const HASH_UNSORTED: u8 = 2;
const OVERFLOW: u8 = 7;
const HASH: u8 = 13;
/// Entry types.
const KEY_DATA: u8 = 1;
const OFF_PAGE: u8 = 3;
const MAX_BLOB: u32 = 256 << 20;

pub fn find(tree: &Tree, wanted: &PathSet, owners: &mut HashMap<String, Package>) -> io::Result<()> {
    each_database(tree, PATHS, |place| find_in(&tree.open_place(place)?, place.bytes, wanted, owners))
}

/// Numbers are in the byte order of the machine that wrote them.
#[derive(Debug, Clone, Copy)]
struct Order {
    big: bool,
}

impl Order {
    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let b: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if self.big { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) })
    }

    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let b: [u8; 2] = bytes.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if self.big { u16::from_be_bytes(b) } else { u16::from_le_bytes(b) })
    }
}

fn find_in(file: &impl ReadAt, bytes: u64, wanted: &PathSet, owners: &mut HashMap<String, Package>) -> io::Result<()> {
    let damaged = || invalid("the database is damaged");
    let mut meta = [0; 72];
    file.read_at_exactly(&mut meta, 0)?;
    let order = [Order { big: false }, Order { big: true }]
        .into_iter()
        .find(|o| o.u32(&meta, 12) == Some(HASH_MAGIC))
        .ok_or_else(|| invalid("not a Berkeley DB hash"))?;
    let page_size = order.u32(&meta, 20).ok_or_else(damaged)? as usize;
    if !(512..=65536).contains(&page_size) || !page_size.is_power_of_two() {
        return Err(damaged());
    }
    if meta[24] != 0 {
        return Err(invalid("the database is encrypted"));
    }
    let last = order.u32(&meta, 32).ok_or_else(damaged)?;
    let pages = u64::from(last).saturating_add(1).min(bytes / page_size as u64);
    let mut page = vec![0; page_size];
    // Each page belongs to one chain, so all chains together cannot exceed the file.
    let mut overflow_left = pages;
    for number in 0..pages {
        file.read_at_exactly(&mut page, number * page_size as u64)?;
        if number == 0 || !matches!(page[25], HASH_UNSORTED | HASH) {
            continue;
        }
        let entries = order.u16(&page, 20).ok_or_else(damaged)? as usize;
        // Keys and values alternate.
        for value in (1..entries).step_by(2) {
            let at = order.u16(&page, PAGE_HEADER + value * 2).ok_or_else(damaged)? as usize;
            let end = order.u16(&page, PAGE_HEADER + (value - 1) * 2).ok_or_else(damaged)? as usize;
            let blob = match page.get(at) {
                Some(&OFF_PAGE) => {
                    let (first, length) = order.u32(&page, at + 4).zip(order.u32(&page, at + 8)).ok_or_else(damaged)?;
                    overflow(file, order, page_size, first, length, &mut overflow_left)?
                }
                Some(&KEY_DATA) => page.get(at + 1..end).ok_or_else(damaged)?.to_vec(),
                _ => continue,
            };
            // Entry 0 holds only the number of the next package.
            if blob.len() > 8 {
                rpm_header::find(&blob, wanted, owners)?;
            }
        }
    }
    Ok(())
}

fn overflow(
    file: &impl ReadAt,
    order: Order,
    page_size: usize,
    first: u32,
    length: u32,
    left: &mut u64,
) -> io::Result<Vec<u8>> {
    let damaged = || invalid("a chain of pages is damaged");
    if length > MAX_BLOB {
        return Err(damaged());
    }
    let mut blob = Vec::new();
    let mut page = vec![0; page_size];
    let mut next = first;
    while next != 0 && blob.len() < length as usize {
        *left = left.checked_sub(1).ok_or_else(damaged)?;
        file.read_at_exactly(&mut page, u64::from(next) * page_size as u64)?;
        if page[25] != OVERFLOW {
            return Err(damaged());
        }
        // On an overflow page this field is the number of bytes.
        let bytes = order.u16(&page, 22).ok_or_else(damaged)? as usize;
        blob.extend(page.get(PAGE_HEADER..PAGE_HEADER + bytes).ok_or_else(damaged)?);
        next = order.u32(&page, 16).ok_or_else(damaged)?;
    }
    if blob.len() != length as usize {
        return Err(damaged());
    }
    Ok(blob)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One hash page with values on overflow pages.
    fn database(blobs: &[Vec<u8>]) -> Vec<u8> {
        const PAGE: usize = 512;
        let mut pages: Vec<Vec<u8>> = vec![vec![0; PAGE], vec![0; PAGE]];
        pages[1][25] = HASH;
        let mut top = PAGE;
        let mut slots = Vec::new();
        for (i, blob) in blobs.iter().enumerate() {
            let first = pages.len() as u32;
            let parts: Vec<&[u8]> = blob.chunks(PAGE - PAGE_HEADER).collect();
            for (k, part) in parts.iter().enumerate() {
                let mut page = vec![0; PAGE];
                page[25] = OVERFLOW;
                let next = if k + 1 < parts.len() { first + k as u32 + 1 } else { 0 };
                page[16..20].copy_from_slice(&next.to_le_bytes());
                page[22..24].copy_from_slice(&(part.len() as u16).to_le_bytes());
                page[PAGE_HEADER..PAGE_HEADER + part.len()].copy_from_slice(part);
                pages.push(page);
            }
            top -= 5;
            pages[1][top] = KEY_DATA;
            pages[1][top + 1..top + 5].copy_from_slice(&(i as u32).to_le_bytes());
            slots.push(top as u16);
            top -= 12;
            pages[1][top] = OFF_PAGE;
            pages[1][top + 4..top + 8].copy_from_slice(&first.to_le_bytes());
            pages[1][top + 8..top + 12].copy_from_slice(&(blob.len() as u32).to_le_bytes());
            slots.push(top as u16);
        }
        for (i, slot) in slots.iter().enumerate() {
            pages[1][PAGE_HEADER + i * 2..PAGE_HEADER + i * 2 + 2].copy_from_slice(&slot.to_le_bytes());
        }
        pages[1][20..22].copy_from_slice(&(slots.len() as u16).to_le_bytes());
        let last = pages.len() as u32 - 1;
        pages[0][12..16].copy_from_slice(&HASH_MAGIC.to_le_bytes());
        pages[0][20..24].copy_from_slice(&(PAGE as u32).to_le_bytes());
        pages[0][32..36].copy_from_slice(&last.to_le_bytes());
        pages.concat()
    }

    fn files() -> Vec<String> {
        (0..60).map(|i| format!("/usr/share/doc/agent/{i}")).collect()
    }

    #[test]
    fn packages_are_found_through_overflow_pages() {
        let mut of_agent: Vec<String> = files();
        of_agent.push("/usr/lib/systemd/system/agent.service".to_owned());
        let of_agent: Vec<&str> = of_agent.iter().map(String::as_str).collect();
        let blobs = [
            rpm_header::tests::header("other", "1", "1", &["/etc/x"]),
            rpm_header::tests::header("agent", "2.0", "3", &of_agent),
        ];
        let file = database(&blobs);
        let mut owners = HashMap::new();
        let path = "/usr/lib/systemd/system/agent.service".to_owned();
        find_in(&file, file.len() as u64, &PathSet::new(std::slice::from_ref(&path)), &mut owners).unwrap();
        assert_eq!((owners[&path].name.as_str(), owners[&path].version.as_deref()), ("agent", Some("2.0-3")));
    }

    #[test]
    fn a_circular_chain_ends() {
        let mut file = database(&[rpm_header::tests::header("a", "1", "1", &["/etc/x"])]);
        // The first overflow page points to itself.
        file[2 * 512 + 16..2 * 512 + 20].copy_from_slice(&2u32.to_le_bytes());
        file[2 * 512 + 22..2 * 512 + 24].copy_from_slice(&0u16.to_le_bytes());
        let bytes = file.len() as u64;
        assert!(find_in(&file, bytes, &PathSet::default(), &mut HashMap::new()).is_err());
    }

    proptest! {
        #[test]
        fn any_damage(at in 0usize..2000, bytes in prop::collection::vec(any::<u8>(), 1..40)) {
            let mut file = database(&[rpm_header::tests::header("a", "1", "1", &["/etc/x"])]);
            for (i, b) in bytes.into_iter().enumerate() {
                if let Some(place) = file.get_mut(at + i) {
                    *place = b;
                }
            }
            let bytes = file.len() as u64;
            let _ = find_in(&file, bytes, &PathSet::new(&["/etc/x".to_owned()]), &mut HashMap::new());
        }
    }
}

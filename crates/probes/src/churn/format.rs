//! Field offsets in a tracepoint's records, from its `format` file in tracefs.

use super::event::text_until_nul;

/// The fields we need. They differ between kernels: `id` has 4 bytes before 5.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    /// The tracepoint's id, with which each record starts.
    pub tracepoint: u32,
    root: Field,
    id: Field,
    path: Field,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
}

/// One record of a cgroup tracepoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub hierarchy: u64,
    pub id: u64,
    pub path: String,
}

impl Format {
    pub fn parse(text: &str) -> Option<Format> {
        let tracepoint = text.lines().find_map(|l| l.strip_prefix("ID:")).and_then(|id| id.trim().parse().ok())?;
        let field = |name: &str| text.lines().find_map(|line| parse_field(line, name));
        Some(Format { tracepoint, root: field("root")?, id: field("id")?, path: field("path")? })
    }

    pub fn read(&self, raw: &[u8]) -> Option<Record> {
        // __data_loc: offset in the lower half, length in the upper.
        let place = number(raw, self.path)?;
        let (start, length) = ((place & 0xffff) as usize, (place >> 16 & 0xffff) as usize);
        let path = raw.get(start..start + length)?;
        Some(Record { hierarchy: number(raw, self.root)?, id: number(raw, self.id)?, path: text_until_nul(path) })
    }
}

/// ` field:__data_loc char[] path; offset:24; size:4; signed:0;`
fn parse_field(line: &str, name: &str) -> Option<Field> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declared = parts.next()?.strip_prefix("field:")?;
    if declared.split_whitespace().last() != Some(name) {
        return None;
    }
    let (mut offset, mut size) = (None, None);
    for part in parts {
        if let Some(text) = part.strip_prefix("offset:") {
            offset = text.parse::<u16>().ok();
        } else if let Some(text) = part.strip_prefix("size:") {
            size = text.parse::<u16>().ok();
        }
    }
    Some(Field { offset: offset?.into(), size: size?.into() })
}

fn number(raw: &[u8], field: Field) -> Option<u64> {
    let bytes = raw.get(field.offset..field.offset + field.size)?;
    match field.size {
        4 => Some(u32::from_ne_bytes(bytes.try_into().ok()?).into()),
        8 => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEW: &str = "name: cgroup_mkdir\nID: 544\nformat:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int root;\toffset:8;\tsize:4;\tsigned:1;
\tfield:int level;\toffset:12;\tsize:4;\tsigned:1;
\tfield:u64 id;\toffset:16;\tsize:8;\tsigned:0;
\tfield:__data_loc char[] path;\toffset:24;\tsize:4;\tsigned:0;

print fmt: \"root=%d id=%llu level=%d path=%s\", REC->root, REC->id, REC->level, __get_str(path)\n";

    #[test]
    fn records_are_read_by_the_kernels_format() {
        let format = Format::parse(NEW).unwrap();
        assert_eq!(format.tracepoint, 544);
        let mut raw = vec![0; 28];
        raw[8] = 4;
        raw[16] = 77;
        raw[24..28].copy_from_slice(&(28u32 | 6 << 16).to_ne_bytes());
        raw.extend_from_slice(b"/a/b1\0\0\0");
        let read = format.read(&raw).unwrap();
        assert_eq!(read, Record { hierarchy: 4, id: 77, path: "/a/b1".into() });
        assert_eq!(format.read(&raw[..30]), None);

        // Linux 5.4
        let old =
            NEW.replace("u64 id;\toffset:16;\tsize:8", "int id;\toffset:16;\tsize:4").replace("offset:24", "offset:20");
        let format = Format::parse(&old).unwrap();
        let mut raw = vec![0; 24];
        raw[16] = 77;
        raw[20..24].copy_from_slice(&(24u32 | 3 << 16).to_ne_bytes());
        raw.extend_from_slice(b"/b\0");
        assert_eq!(format.read(&raw).unwrap(), Record { hierarchy: 0, id: 77, path: "/b".into() });
        assert_eq!(Format::parse("ID: 3\n"), None);
    }

    proptest! {
        #[test]
        fn any_format_and_record(
            text in "(ID: [0-9]{1,4}\n)?(\tfield:(int root|u64 id|x path);\toffset:[0-9]{1,3};\tsize:[0-9]{1,6};\n|.{0,20}\n){0,6}",
            raw in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            if let Some(format) = Format::parse(&text) {
                format.read(&raw);
            }
            Format::parse(NEW).unwrap().read(&raw);
        }
    }
}

use super::*;
use crate::ZombieScan;
use proptest::collection::vec;
use proptest::prelude::*;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..200, any::<u64>(), Just(u64::MAX), Just(1 << 63)]
}

fn nameless(path: String) -> Zombie {
    let held = Charged::default();
    Zombie { id: 0, path, references: None, held, born: None, directory_lives: false, serial: 0 }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..300), rows in number()) {
        let _ = decode(&bytes, rows);
        let _ = unpack(&bytes);
    }

    #[test]
    fn any_columns_are_decoded_or_refused(columns in proptest::array::uniform18(vec(any::<u8>(), 0..12))) {
        let _ = unpack(&chunk::join(columns));
    }

    #[test]
    fn a_flipped_byte_is_decoded_or_refused(
        bytes in vec(any::<u8>(), 0..4000), place in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let scan: ZombieScan = crate::any::any(bytes, |_, _| None);
        let mut payload = pack(&pinned(&scan.zombies, &scan.holds));
        let at = place.index(payload.len());
        payload[at] ^= flip;
        let _ = unpack(&payload);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn parts_put_together_are_the_whole(lengths in vec(0usize..3_000_000, 0..12)) {
        let zombies: Vec<_> = lengths.iter().map(|&length| nameless("x".repeat(length))).collect();
        let all = pinned(&zombies, &[]);
        let mut back = Vec::new();
        for part in parts(&all) {
            back.extend(decode(&encode(part).unwrap(), part.len() as u64).unwrap().0);
        }
        prop_assert_eq!(back, zombies);
    }
}

#[test]
fn the_largest_numbers_fit_into_a_chunk() {
    let most = Some(u64::MAX);
    let (file, swap_backed, unevictable) = (u64::MAX, u64::MAX, u64::MAX);
    let held = Charged { file, swap_backed, unevictable, anonymous: most, shmem: most, kernel: most, swap: most };
    // Differences of 2⁶³ are the longest.
    let zombies: Vec<_> = (0..100_000u64)
        .map(|i| Zombie {
            id: i << 63,
            path: format!("/{}", i % 7),
            references: most,
            held,
            born: Some(Born { at: Time(i << 63), exact: true }),
            directory_lives: true,
            serial: i << 63,
        })
        .collect();
    let holds: Vec<_> = (0..100_000u32).map(|zombie| Hold { zombie, file: zombie << 31, bytes: u64::MAX }).collect();
    let all = pinned(&zombies, &holds);
    let (mut back, mut back_holds) = (Vec::new(), Vec::new());
    for part in parts(&all) {
        assert!(pack(part).len() <= MAX_PAYLOAD);
        let (zombies, holds) = decode(&encode(part).unwrap(), part.len() as u64).unwrap();
        back_holds.extend(holds.into_iter().map(|h| Hold { zombie: h.zombie + back.len() as u32, ..h }));
        back.extend(zombies);
    }
    assert!(back == zombies && back_holds == holds);
}

#[test]
fn a_hold_on_no_zombie_is_left_out() {
    let zombies = [nameless("/a".into())];
    let holds = [Hold { zombie: 0, file: 1, bytes: 2 }, Hold { zombie: 1, file: 1, bytes: 2 }];
    let data = encode(&pinned(&zombies, &holds)).unwrap();
    assert_eq!(decode(&data, 1).unwrap().1, holds[..1]);
}

/// The columns of `n` zombies, all filled with the same byte.
fn columns_of(n: usize) -> [Vec<u8>; 18] {
    let mut columns = [const { Vec::new() }; 18];
    for i in [0, 1, 2, 3, 5, 7, 8, 9, 15] {
        columns[i] = vec![0; n];
    }
    columns
}

#[test]
fn a_bomb_is_refused_before_it_fills_memory() {
    // 100,000 paths of 100,000 bytes, all alike: 10 GB.
    let mut columns = columns_of(100_000);
    let long = 100_000;
    for (column, first, later) in [(2, 0, long), (3, long, 0)] {
        columns[column].clear();
        put(&mut columns[column], first);
        (1..100_000).for_each(|_| put(&mut columns[column], later));
    }
    columns[4] = vec![b'x'; long as usize];
    let payload = chunk::join(columns);
    assert!(payload.len() < MAX_PAYLOAD);
    assert_eq!(unpack(&payload), Err(ChunkError::TooMuchMemory));
    // As many as fit into a chunk's bytes.
    assert_eq!(unpack(&chunk::join(columns_of(900_000))), Err(ChunkError::TooMuchMemory));
    // One with as many holds as can be encoded.
    let mut columns = columns_of(1);
    columns[15].clear();
    put(&mut columns[15], u64::MAX);
    (columns[16], columns[17]) = (vec![0; 4 << 20], vec![0; 4 << 20]);
    assert_eq!(unpack(&chunk::join(columns)), Err(ChunkError::TooMuchMemory));
}

#[test]
fn errors_name_the_column() {
    let one = |column: usize, bytes: &[u8]| {
        let mut columns = columns_of(1);
        columns[column] = bytes.to_vec();
        unpack(&chunk::join(columns))
    };
    assert_eq!(one(0, &[0]).unwrap().0, [nameless(String::new())]);
    assert_eq!(one(2, &[1]), Err(ChunkError::Range("shared", 1)));
    assert_eq!(one(3, &[1]), Err(ChunkError::Text("path")));
    assert_eq!(one(4, b"x"), Err(ChunkError::Surplus("path")));
    assert_eq!(one(5, &[0x80, 2]), Err(ChunkError::Range("flags", 256)));
    assert_eq!(one(5, &[2]), Err(ChunkError::Number("references")));
    assert_eq!(one(15, &[1]), Err(ChunkError::Number("held_by")));
    let mut columns = columns_of(1);
    (columns[3], columns[4]) = (vec![1], vec![0xff]);
    assert_eq!(unpack(&chunk::join(columns)), Err(ChunkError::Text("path")));
    let good = encode(&pinned(&[nameless("/a".into())], &[])).unwrap();
    assert_eq!(decode(&good, 2), Err(ChunkError::Rows { expected: 2, found: 1 }));
}

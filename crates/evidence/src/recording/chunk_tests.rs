use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Small numbers, as is usual, and the ends of the range, as is possible.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..200, any::<u64>(), Just(u64::MAX), Just(1 << 63)]
}

fn counter_point() -> impl Strategy<Value = CounterPoint> {
    (0u64..5, number(), number()).prop_map(|(series, at, value)| CounterPoint { series, at: Time(at), value })
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..200), rows in number()) {
        let _ = decode::<CoreTimes>(&bytes, rows);
        let _ = CoreTimes::unpack(&bytes);
        let _ = ThreadSample::unpack(&bytes);
        let _ = CounterPoint::unpack(&bytes);
    }

    /// Harder than random bytes: a good payload with one wrong byte.
    #[test]
    fn a_flipped_byte_is_decoded_or_refused(
        bytes in vec(any::<u8>(), 0..3000), points in vec(counter_point(), 1..10),
        place in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let (looks, samples): (Vec<CoreTimes>, Vec<ThreadSample>) = crate::any::any(bytes, |_, _| None);
        let spoil = |mut bytes: Vec<u8>| {
            let at = place.index(bytes.len());
            bytes[at] ^= flip;
            bytes
        };
        let _ = CoreTimes::unpack(&spoil(CoreTimes::pack(&looks)));
        let _ = ThreadSample::unpack(&spoil(ThreadSample::pack(&samples)));
        let _ = CounterPoint::unpack(&spoil(CounterPoint::pack(&points)));
        let _ = decode::<CoreTimes>(&spoil(encode(&looks).unwrap()), 1);
    }

    #[test]
    fn varints_come_back(value in any::<u64>(), before in any::<u64>()) {
        let mut column = Vec::new();
        put(&mut column, value);
        put_difference(&mut column, value, before);
        let mut column = Column { name: "x", rest: &column };
        prop_assert_eq!(column.next(), Ok(value));
        prop_assert_eq!(column.after(before), Ok(value));
    }
}

#[test]
fn a_bomb_is_refused_before_it_fills_memory() {
    let bomb = zstd::bulk::compress(&vec![0; 256 << 20], 3).unwrap();
    assert!(bomb.len() < 100_000);
    assert_eq!(decode::<CoreTimes>(&bomb, 1), Err(ChunkError::TooLarge));
    // A look that claims many cores but has none.
    let look_of = |cores: u64| {
        let mut count = Vec::new();
        put_difference(&mut count, cores, 0);
        let mut columns = [const { Vec::new() }; 11];
        (columns[0], columns[1]) = (vec![0], count);
        CoreTimes::unpack(&join(columns))
    };
    assert_eq!(look_of(MAX_CORES as u64), Err(ChunkError::Number("core")));
    assert_eq!(look_of(1 << 62), Err(ChunkError::Range("count", 1 << 62)));
}

#[test]
fn errors_name_the_column() {
    let looks = [CoreTimes { at: Time(5), cores: vec![CoreTicks::default()] }];
    let good = encode(&looks).unwrap();
    assert_eq!(decode::<CoreTimes>(&good, 2), Err(ChunkError::Rows { expected: 2, found: 1 }));
    assert!(matches!(decode::<CoreTimes>(&good[..good.len() / 2], 1), Err(ChunkError::Zstd(_))));
    assert!(matches!(decode::<CoreTimes>(b"", 0), Err(ChunkError::Zstd(_))));
    assert_eq!(CoreTimes::unpack(b""), Err(ChunkError::Number("count")));
    assert_eq!(CoreTimes::unpack(&join([vec![0]])), Err(ChunkError::Column("count")));
    assert!(matches!(ThreadSample::unpack(&CoreTimes::pack(&looks)), Err(ChunkError::Column("run"))));
}

#[test]
fn other_zstd_frames_are_unpacked_and_no_size_is_trusted() {
    let payload = CoreTimes::pack(&[CoreTimes { at: Time(7), cores: vec![CoreTicks::default(); 300] }]);
    let known = compress(&payload, ZSTD_LEVEL).unwrap();
    let told = |data: &[u8]| zstd::zstd_safe::get_frame_content_size(data).unwrap();
    assert_eq!(told(&known), Some(payload.len() as u64));
    assert_eq!(decompress(&known).unwrap(), payload);
    // Streamed: the frame does not state its size.
    let streamed = zstd::stream::encode_all(payload.as_slice(), 3).unwrap();
    assert_eq!(told(&streamed), None);
    assert_eq!(decompress(&streamed).unwrap(), payload);
    // Two frames; the size is that of the first only.
    assert_eq!(decompress(&[known.as_slice(), &known].concat()).unwrap(), [payload.as_slice(), &payload].concat());
    let zeros = vec![0; MAX_PAYLOAD + 1];
    assert_eq!(decompress(&zstd::bulk::compress(&zeros, 1).unwrap()), Err(ChunkError::TooLarge));
    assert_eq!(decompress(&zstd::stream::encode_all(zeros.as_slice(), 1).unwrap()), Err(ChunkError::TooLarge));
    assert_eq!(decompress(&zstd::bulk::compress(&zeros[1..], 1).unwrap()).unwrap().len(), MAX_PAYLOAD);
    for cut in [1, 5, known.len() - 1] {
        assert!(matches!(decompress(&known[..cut]), Err(ChunkError::Zstd(_))), "{cut}");
    }
}

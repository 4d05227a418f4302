use super::*;

const MANY: Limits = Limits { bytes: 1 << 30, age: Duration::from_secs(1 << 40) };

fn opened(dir: &tempfile::TempDir, limits: Limits) -> Files {
    Files::open(Place::parse(dir.path().join("files").to_str().unwrap()).unwrap(), dir.path(), limits, None).unwrap()
}

fn id(number: u64) -> Id {
    Id { node: "../n 1".to_owned(), number, triggered_s: 1_790_000_000 }
}

fn digest_of(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn send(files: &Files, number: u64, bytes: &[u8], from: usize, to: usize) -> Result<u64, NotReceived> {
    let sha256 = digest_of(bytes);
    let piece = Piece { size: bytes.len() as u64, sha256: &sha256, offset: from as u64, bytes: &bytes[from..to] };
    files.receive(&id(number).node, number, &piece)
}

fn content(files: &Files, number: u64) -> Option<Vec<u8>> {
    let stored = files.find(&id(number)).unwrap()?;
    let mut bytes = Vec::new();
    files.open_stored(&stored).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!((stored.bytes, stored.sha256), (bytes.len() as u64, digest_of(&bytes)));
    Some(bytes)
}

#[test]
fn a_file_comes_in_pieces_also_across_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..1000_u32).map(|n| n as u8).collect();
    let files = opened(&dir, MANY);
    assert_eq!(send(&files, 3, &bytes, 0, 400), Err(NotReceived::NotWanted));
    files.want(&id(3)).unwrap();
    assert_eq!(files.wanted_of(&id(3).node), [WantedFile { incident: 3 }]);
    assert!(files.wanted_of("another").is_empty());
    assert_eq!(files.progress(&id(3)).unwrap(), Progress::Waiting);
    assert_eq!(send(&files, 3, &bytes, 0, 400), Ok(400));
    assert_eq!(send(&files, 3, &bytes, 0, 400), Err(NotReceived::Elsewhere(400)), "its answer was lost");
    assert_eq!(files.progress(&id(3)).unwrap(), Progress::Receiving { bytes: 400, of: 1000 });
    drop(files);
    let files = opened(&dir, MANY);
    files.want(&id(3)).unwrap();
    assert_eq!(send(&files, 3, &bytes, 0, 200), Err(NotReceived::Elsewhere(400)));
    assert_eq!(send(&files, 3, &bytes, 400, 1000), Ok(1000));
    assert_eq!(send(&files, 3, &bytes, 400, 1000), Ok(1000), "its answer was lost");
    assert_eq!(send(&files, 3, &bytes, 0, 400), Err(NotReceived::Elsewhere(1000)));
    assert_eq!(content(&files, 3), Some(bytes));
    assert_eq!(files.find(&id(4)).unwrap(), None);
    assert_eq!(files.find(&Id { triggered_s: 5, ..id(3) }).unwrap(), None, "a node whose disk was replaced");
    assert!(files.wanted_of(&id(3).node).is_empty());
    assert_eq!(std::fs::read_dir(dir.path().join("parts")).unwrap().count(), 0);
    // A name of a node is no path.
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn bad_pieces_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let files = opened(&dir, Limits { bytes: 5000, ..MANY });
    files.want(&id(1)).unwrap();
    let bytes = [7; 100];
    let sha256 = digest_of(&bytes);
    let receive = |piece: Piece<'_>| files.receive(&id(1).node, 1, &piece);
    let piece = || Piece { size: 100, sha256: &sha256, offset: 0, bytes: &bytes };
    assert!(matches!(receive(Piece { sha256: "../../x", ..piece() }), Err(NotReceived::Bad(_))));
    assert!(matches!(receive(Piece { offset: u64::MAX, ..piece() }), Err(NotReceived::Bad(_))));
    assert!(matches!(receive(Piece { offset: 1, ..piece() }), Err(NotReceived::Bad(_))));
    assert_eq!(receive(Piece { size: 200, offset: 50, ..piece() }), Err(NotReceived::Elsewhere(0)));
    let other = digest_of(b"another file");
    assert_eq!(receive(Piece { sha256: &other, ..piece() }), Err(NotReceived::Damaged));
    assert_eq!(content(&files, 1), None);
    for begun in ["a", "b", "c"] {
        let sha256 = digest_of(begun.as_bytes());
        assert_eq!(receive(Piece { size: 4000, sha256: &sha256, ..piece() }), Ok(100));
    }
    assert_eq!(std::fs::read_dir(dir.path().join("parts")).unwrap().count(), 1, "what it claims to send takes no room");
    assert_eq!(receive(Piece { size: 5001, ..piece() }), Err(NotReceived::TooLarge));
    assert_eq!(files.progress(&id(1)).unwrap(), Progress::TooLarge { bytes: 5001 });
    assert!(files.wanted_of(&id(1).node).is_empty());
}

#[test]
fn a_node_may_decline_and_is_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let files = opened(&dir, MANY);
    let node = id(1).node;
    assert_eq!(files.unsent(&node, 1, REFUSED), Err(NotReceived::NotWanted));
    for (why, progress) in [(REFUSED, Progress::Refused), (GONE, Progress::Gone)] {
        files.want(&id(1)).unwrap();
        assert_eq!(files.wanted_of(&node).len(), 1);
        files.unsent(&node, 1, why).unwrap();
        assert_eq!(files.progress(&id(1)).unwrap(), progress);
        assert!(files.wanted_of(&node).is_empty());
    }
    assert!(matches!(files.unsent(&node, 1, "tired"), Err(NotReceived::Bad(_))));
}

#[test]
fn the_oldest_files_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let files = opened(&dir, Limits { bytes: 250, ..MANY });
    for number in 1..=3 {
        files.want(&id(number)).unwrap();
        assert_eq!(send(&files, number, &[number as u8; 100], 0, 100), Ok(100));
        // Their times may be the same otherwise.
        let stored = files.find(&id(number)).unwrap().unwrap();
        let path = dir.path().join("files").join(stored.name());
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + number);
        File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
    }
    assert_eq!((content(&files, 1), content(&files, 2).is_some(), content(&files, 3).is_some()), (None, true, true));
    drop(files);
    let old = opened(&dir, Limits { bytes: 250, age: Duration::from_secs(60) });
    old.tidy(0).unwrap();
    assert!(content(&old, 2).is_none() && content(&old, 3).is_none());
}

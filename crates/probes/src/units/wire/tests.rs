use super::*;
use proptest::prelude::*;

/// A reply, or an error with this name, as a bus would send it.
pub fn reply(to: u32, error: Option<&str>, signature: &str, body: &[u8]) -> Vec<u8> {
    let mut out = vec![b'l', if error.is_some() { ERROR } else { METHOD_RETURN }, 1, 1];
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.extend([0; 4]);
    out.extend([field::REPLY_SERIAL, 1, b'u', 0]);
    out.extend(to.to_le_bytes());
    if let Some(error) = error {
        write_field(&mut out, 0, field::ERROR_NAME, b's', error);
    }
    if !signature.is_empty() {
        pad(&mut out, 0, 8);
        out.extend([field::SIGNATURE, 1, b'g', 0, signature.len() as u8]);
        out.extend(signature.as_bytes());
        out.push(0);
    }
    let fields = (out.len() - FIXED_HEADER) as u32;
    out[12..16].copy_from_slice(&fields.to_le_bytes());
    pad(&mut out, 0, 8);
    out.extend(body);
    out
}

/// The body of an answer to Get.
pub fn variant_body(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let sign = |out: &mut Vec<u8>, signature: &str| {
        out.push(signature.len() as u8);
        out.extend(signature.as_bytes());
        out.push(0);
    };
    match value {
        Value::Text(text) => {
            sign(&mut out, "s");
            write_text(&mut out, 0, text);
        }
        Value::Flag(flag) => {
            sign(&mut out, "b");
            pad(&mut out, 0, 4);
            out.extend(u32::from(*flag).to_le_bytes());
        }
        Value::Unsigned(number) => {
            sign(&mut out, "t");
            pad(&mut out, 0, 8);
            out.extend(number.to_le_bytes());
        }
        Value::Signed(number) => {
            sign(&mut out, "i");
            pad(&mut out, 0, 4);
            out.extend((*number as i32).to_le_bytes());
        }
        Value::Bytes(bytes) => {
            sign(&mut out, "ay");
            pad(&mut out, 0, 4);
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend(*bytes);
        }
        Value::Texts(texts) => {
            sign(&mut out, "as");
            pad(&mut out, 0, 4);
            let length_at = out.len();
            out.extend([0; 4]);
            for text in texts {
                write_text(&mut out, 0, text);
            }
            let length = (out.len() - length_at - 4) as u32;
            out[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
        }
        Value::Other => sign(&mut out, "(ii)"),
    }
    out
}

/// The body of an answer to ListUnits.
pub fn listed_body(units: &[(&str, &str, &str, &str, &str)]) -> Vec<u8> {
    let mut out = vec![0; 8];
    for (name, load, active, sub, object) in units {
        pad(&mut out, 0, 8);
        for text in [*name, "a description", *load, *active, *sub, "", *object] {
            write_text(&mut out, 0, text);
        }
        pad(&mut out, 0, 4);
        out.extend(0u32.to_le_bytes());
        for text in ["", "/"] {
            write_text(&mut out, 0, text);
        }
    }
    let length = (out.len() - 8) as u32;
    out[..4].copy_from_slice(&length.to_le_bytes());
    out
}

/// Serial, member, object and arguments of a call, as a bus would read them, and the length of the message.
pub fn read_call(bytes: &[u8]) -> Option<(u32, String, String, Vec<String>, usize)> {
    let whole = length(bytes).unwrap()?;
    let bytes = bytes.get(..whole)?;
    let mut reader = ValueReader { bytes, at: 8, big_endian: false };
    let serial = reader.u32()?;
    let fields_end = FIXED_HEADER + reader.u32()? as usize;
    let (mut path, mut member, mut arguments) = (String::new(), String::new(), 0);
    while reader.at < fields_end {
        reader.align(8)?;
        match (reader.u8()?, reader.variant()?) {
            (field::PATH, Value::Text(text)) => path = text.to_owned(),
            (field::MEMBER, Value::Text(text)) => member = text.to_owned(),
            (field::SIGNATURE, Value::Text(text)) => arguments = text.len(),
            _ => {}
        }
    }
    reader.align(8)?;
    let mut body = ValueReader { bytes: &bytes[reader.at..], at: 0, big_endian: false };
    let arguments = (0..arguments).map(|_| body.text().map(str::to_owned)).collect::<Option<Vec<_>>>()?;
    Some((serial, member, path, arguments, whole))
}

/// Messages as zbus 5.19 wrote them: `Message::method_call("/a", "Get")` with destination and interface, `build(&("one", "three"))`, its
/// `data()`; the serial is the third word.
const GET: &[u8] = b"l\x01\x00\x01\x12\x00\x00\x00\x01\x00\x00\x00H\x00\x00\x00\x01\x01o\x00\x02\x00\x00\x00/a\x00\x00\x00\x00\x00\x00\
    \x02\x01s\x00\x05\x00\x00\x00org.b\x00\x00\x00\x03\x01s\x00\x03\x00\x00\x00Get\x00\x00\x00\x00\x00\
    \x06\x01s\x00\x05\x00\x00\x00org.a\x00\x00\x00\x08\x01g\x00\x02ss\x00\x03\x00\x00\x00one\x00\x05\x00\x00\x00three\x00";
/// The same of `build(&(vec!["a.service", "it"], true, false, "x"))`.
const MASK: &[u8] =
    b"l\x01\x00\x01*\x00\x00\x00\x02\x00\x00\x00S\x00\x00\x00\x01\x01o\x00\x02\x00\x00\x00/a\x00\x00\x00\x00\x00\x00\
    \x02\x01s\x00\x05\x00\x00\x00org.b\x00\x00\x00\x03\x01s\x00\r\x00\x00\x00MaskUnitFiles\x00\x00\x00\
    \x06\x01s\x00\x05\x00\x00\x00org.a\x00\x00\x00\x08\x01g\x00\x05asbbs\x00\x00\x00\x00\x00\x00\
    \x17\x00\x00\x00\t\x00\x00\x00a.service\x00\x00\x00\x02\x00\x00\x00it\x00\x00\
    \x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00x\x00";
/// `Message::method_return` to a call of serial 3, `build(&Value::from(vec!["a.timer", "b.socket"]))`.
const TEXTS: &[u8] = b"l\x02\x00\x01!\x00\x00\x00\x04\x00\x00\x00\x0f\x00\x00\x00\x05\x01u\x00\x03\x00\x00\x00\x08\x01g\x00\x01v\x00\x00\
    \x02as\x00\x19\x00\x00\x00\x07\x00\x00\x00a.timer\x00\x08\x00\x00\x00b.socket\x00";

/// The call after other bytes, as in a batch.
fn written(serial: u32, member: &str, arguments: &[Argument<'_>]) -> Vec<u8> {
    let call = Call { destination: Some("org.a"), path: "/a", interface: "org.b", member, arguments };
    let mut out = b"12345".to_vec();
    call.write(serial, &mut out);
    let mut message = out.split_off(5);
    assert_eq!(length(&message), Ok(Some(message.len())));
    assert_eq!(message[2], NO_AUTO_START, "zbus does not set it by default");
    message[2] = 0;
    message
}

#[test]
fn calls_are_written_as_zbus_writes_them() {
    let get = written(1, "Get", &[Argument::Text("one"), Argument::Text("three")]);
    assert_eq!(get.escape_ascii().to_string(), GET.escape_ascii().to_string());
    let (serial, member, path, arguments, _) = read_call(&get).unwrap();
    assert_eq!((serial, member.as_str(), path.as_str()), (1, "Get", "/a"));
    assert_eq!(arguments, ["one", "three"]);
    let list = Argument::Texts(&["a.service", "it"]);
    let mask = written(2, "MaskUnitFiles", &[list, Argument::Flag(true), Argument::Flag(false), Argument::Text("x")]);
    assert_eq!(mask.escape_ascii().to_string(), MASK.escape_ascii().to_string());
}

#[test]
fn values_round_trip() {
    for value in [
        Value::Text("a text"),
        Value::Flag(true),
        Value::Unsigned(u64::MAX),
        Value::Signed(-9),
        Value::Bytes(&[1, 2, 3]),
        Value::Texts(vec!["a.timer", "b.socket"]),
        Value::Texts(vec![]),
        Value::Other,
    ] {
        let bytes = reply(9, None, "v", &variant_body(&value));
        assert_eq!(length(&bytes), Ok(Some(bytes.len())));
        let Ok(Message::Answer(9, body)) = parse(&bytes) else { panic!("{value:?}") };
        assert_eq!((body.signature, body.read().variant()), ("v", Some(value)));
    }
    let mut words = Vec::new();
    write_text(&mut words, 0, "it went");
    let refused = reply(3, Some("org.a.Gone"), "s", &words);
    assert_eq!(parse(&refused), Ok(Message::Refusal(3, "org.a.Gone", Some("it went"))));
}

#[test]
fn messages_from_zbus_are_parsed() {
    let Ok(Message::Answer(3, body)) = parse(TEXTS) else { panic!("{:?}", parse(TEXTS)) };
    assert_eq!(body.read().variant(), Some(Value::Texts(vec!["a.timer", "b.socket"])));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..200), little in any::<bool>()) {
        if let Some(first) = bytes.first_mut() {
            *first = if little { b'l' } else { b'B' };
        }
        let _ = length(&bytes);
        let _ = parse(&bytes);
    }

    #[test]
    fn a_damaged_message_is_survived(at in 0usize..200, with in any::<u8>(), cut in 0usize..200) {
        let texts = Value::Texts(vec!["a.timer", "b.socket"]);
        let mut bytes = reply(9, Some("org.a.Error"), "v", &variant_body(&texts));
        if let Some(byte) = bytes.get_mut(at) {
            *byte = with;
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        if let Ok(Message::Answer(_, body)) = parse(&bytes) {
            let _ = body.read().variant();
        }
    }
}

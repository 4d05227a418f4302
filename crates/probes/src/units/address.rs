//! Which sockets reach systemd, and connecting to them without blocking.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::Blind;
use crate::Root;

/// Exists if the node was booted with systemd (sd_booted(3)).
const SIGN_OF_SYSTEMD: &str = "/run/systemd/system";
const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";
/// systemd's private socket for root, which systemctl uses: five times as cheap as the bus, and it works while the bus hangs.
const PRIVATE: &str = "/run/systemd/private";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnixSocket {
    File(PathBuf),
    Abstract(Vec<u8>),
}

/// As ss(8) shows it: an abstract name begins with @.
impl fmt::Display for UnixSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnixSocket::File(path) => path.display().fmt(f),
            UnixSocket::Abstract(name) => write!(f, "@{}", name.escape_ascii()),
        }
    }
}

/// The sockets to try, best first. `address` is the user's choice.
pub fn places(root: &Root, address: Option<&str>) -> Result<Vec<UnixSocket>, Blind> {
    let from_environment = || std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok().filter(|a| root.is_live() && !a.is_empty());
    match address.map(str::to_owned).or_else(from_environment) {
        Some(address) => parse(&address),
        None if !root.path(SIGN_OF_SYSTEMD).is_dir() => Err(Blind {
            why: "systemd is not running here".to_owned(),
            how_to_see: "in a container, mount the host's bus and pass it with --bus unix:path=…".to_owned(),
        }),
        None => Ok([PRIVATE, SYSTEM_BUS].map(|path| UnixSocket::File(root.path(path))).into()),
    }
}

/// The sockets of an address list: `unix:path=/run/dbus/system_bus_socket;unix:abstract=bus` (D-Bus specification, "Server Addresses").
/// Other transports are refused: they reach beyond the node, or run a program.
pub fn parse(text: &str) -> Result<Vec<UnixSocket>, Blind> {
    let addresses = text.split(';').map(str::trim).filter(|address| !address.is_empty());
    let one = |address| socket(address).map_err(|why| Blind::new(format_args!("bus address {address:?}: {why}")));
    addresses.map(one).collect()
}

fn socket(address: &str) -> Result<UnixSocket, &'static str> {
    let (transport, settings) = address.split_once(':').ok_or("expected unix:path=…")?;
    if transport != "unix" {
        return Err("not a unix socket");
    }
    let (mut path, mut name) = (None, None);
    for setting in settings.split(',') {
        let (key, value) = setting.split_once('=').ok_or("expected key=value after the colon")?;
        let told = match key {
            "path" => &mut path,
            "abstract" => &mut name,
            _ => continue,
        };
        if told.replace(unescaped(value)?).is_some() {
            return Err("two sockets in one address");
        }
    }
    match (path, name) {
        (Some(path), None) => Ok(UnixSocket::File(OsString::from_vec(path).into())),
        (None, Some(name)) => Ok(UnixSocket::Abstract(name)),
        (Some(_), Some(_)) => Err("two sockets in one address"),
        (None, None) => Err("names no socket: expected path=… or abstract=…"),
    }
}

/// Decodes bytes written as `%2f`.
fn unescaped(value: &str) -> Result<Vec<u8>, &'static str> {
    let mut bytes = value.bytes();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
                let (Some(high), Some(low)) = (digit(), digit()) else {
                    return Err("% without two hexadecimal digits");
                };
                (high * 16 + low) as u8
            }
            byte => byte,
        });
    }
    if plain.is_empty() { Err("names no socket: the value is empty") } else { Ok(plain) }
}

/// Does not block, as connecting to a unix socket would while the listener's queue is full. The stream is nonblocking.
pub fn connect(place: &UnixSocket) -> std::io::Result<UnixStream> {
    let address = match place {
        UnixSocket::File(path) => SocketAddrUnix::new(path)?,
        UnixSocket::Abstract(name) => SocketAddrUnix::new_abstract_name(name)?,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(path: &str) -> UnixSocket {
        UnixSocket::File(path.into())
    }

    #[test]
    fn lists_the_sockets_of_an_address_in_order() {
        let guid = "guid=0123456789abcdef0123456789abcdef";
        let list = format!("unix:path=/run/a; unix:abstract=/tmp/b,{guid};;unix:{guid},path=/run/dbus/a%20b%3Bc%2c%FF");
        let odd = OsString::from_vec(b"/run/dbus/a b;c,\xff".to_vec());
        let expected = [file("/run/a"), UnixSocket::Abstract(b"/tmp/b".to_vec()), UnixSocket::File(odd.into())];
        assert_eq!(parse(&list).unwrap(), expected);
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn addresses_that_are_not_local_sockets_are_refused_with_a_reason() {
        for (address, why) in [
            ("/run/dbus/system_bus_socket", "expected unix:path="),
            ("tcp:host=localhost,port=4142", "not a unix socket"),
            ("unixexec:path=/bin/sh", "not a unix socket"),
            ("unix:", "expected key=value"),
            ("unix:path", "expected key=value"),
            ("unix:path=", "the value is empty"),
            ("unix:tmpdir=/tmp", "names no socket"),
            ("unix:path=/a,abstract=b", "two sockets"),
            ("unix:path=/a,path=/b", "two sockets"),
            ("unix:path=/a%2", "hexadecimal"),
            ("unix:path=/a%zz", "hexadecimal"),
        ] {
            let blind = parse(&format!("unix:path=/run/a;{address}")).unwrap_err();
            assert!(blind.why.contains(why) && blind.why.contains(address), "{address}: {}", blind.why);
        }
    }

    proptest! {
        #[test]
        fn any_address_is_survived(text in "\\PC*", path in "[a-z/%0-9]*") {
            let _ = parse(&text);
            let _ = parse(&format!("unix:path={path};unix:abstract={text}"));
        }
    }
}

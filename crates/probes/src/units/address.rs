//! Where systemd can be asked, and connecting there without waiting.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use zbus::address::Transport;
use zbus::address::transport::UnixSocket;

use super::Blind;
use crate::Root;

/// systemd's sign that it runs the node (sd_booted(3)).
const SIGN_OF_SYSTEMD: &str = "/run/systemd/system";
const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";
/// Where systemd itself answers root, as systemctl asks it: five times as cheap as over the bus, and there while the bus hangs.
const PRIVATE: &str = "/run/systemd/private";

/// The places to try, best first. `address` is what the user named.
pub fn places(root: &Root, address: Option<&str>) -> Result<Vec<UnixSocket>, Blind> {
    let from_environment = || std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok().filter(|a| root.is_live() && !a.is_empty());
    match address.map(str::to_owned).or_else(from_environment) {
        Some(address) => parse(&address),
        None if !root.path(SIGN_OF_SYSTEMD).is_dir() => Err(Blind {
            why: "systemd does not run this node".to_owned(),
            how_to_see: "in a container: mount the host's bus and name it with --bus unix:path=…".to_owned(),
        }),
        None => Ok([PRIVATE, SYSTEM_BUS].map(|path| UnixSocket::File(root.path(path))).into()),
    }
}

/// The sockets of an address list: `unix:path=/run/dbus/system_bus_socket;unix:abstract=bus`. Other transports are refused:
/// they reach beyond the node, or run a program.
pub fn parse(text: &str) -> Result<Vec<UnixSocket>, Blind> {
    let mut places = Vec::new();
    for address in text.split(';').filter(|a| !a.trim().is_empty()) {
        let parsed: zbus::Address =
            address.trim().parse().map_err(|e| Blind::new(format_args!("bus address {address:?}: {e}")))?;
        match parsed.transport() {
            Transport::Unix(unix) => places.push(unix.path().clone()),
            _ => return Err(Blind::new(format_args!("bus address {address:?}: not a unix socket of this node"))),
        }
    }
    Ok(places)
}

/// Does not wait: a connect to a unix socket blocks while the listener's queue is full. Nor does what it gives.
pub fn connect(place: &UnixSocket) -> std::io::Result<UnixStream> {
    let address = match place {
        UnixSocket::File(path) => SocketAddrUnix::new(path)?,
        UnixSocket::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        _ => return Err(rustix::io::Errno::NOTSUP.into()),
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

    proptest! {
        #[test]
        fn any_address_is_survived(text in "\\PC*", path in "[a-z/%0-9]*") {
            let _ = parse(&text);
            let _ = parse(&format!("unix:path={path};unix:abstract={text}"));
        }
    }
}

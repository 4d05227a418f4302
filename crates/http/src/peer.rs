//! Which user a connection belongs to: every user of a machine can reach its loopback, but what is served may be private to one.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};

/// The user at the other end of a loopback connection, from the kernel's socket tables. `None` if it is not listed there.
pub fn user(peer: SocketAddr, ours: SocketAddr) -> Option<u32> {
    let tables =
        if peer.is_ipv4() { ["/proc/self/net/tcp", "/proc/self/net/tcp6"] } else { ["/proc/self/net/tcp6"; 2] };
    tables.iter().find_map(|table| {
        let lines = BufReader::new(std::fs::File::open(table).ok()?).lines().skip(1).map_while(Result::ok);
        lines
            .filter_map(|line| parse(&line))
            .find(|(local, remote, _)| *local == peer && *remote == ours)
            .map(|(.., uid)| uid)
    })
}

/// Both ends and the owner of a line of /proc/net/tcp or tcp6.
fn parse(line: &str) -> Option<(SocketAddr, SocketAddr, u32)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
    Some((local, remote, fields.nth(4)?.parse().ok()?))
}

/// `0100007F:1F90`: four-byte words in native byte order, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |word: &[u8]| match word.len() {
        8 => u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok(),
        _ => None,
    };
    let words = ip.as_bytes().chunks(8).map(word);
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn finds_the_owner_of_our_own_connection() {
        let us = std::fs::metadata("/proc/self").unwrap().uid();
        for bound in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(bound) else { continue };
            let ours = listener.local_addr().unwrap();
            let client = TcpStream::connect(ours).unwrap();
            assert_eq!(user(client.local_addr().unwrap(), ours), Some(us), "{bound}");
            let nobody = SocketAddr::new(ours.ip(), 1);
            assert_eq!(user(nobody, ours), None);
        }
    }

    #[test]
    fn parses_kernel_lines() {
        let line = "   1: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 12345 1";
        let (local, remote, uid) = parse(line).unwrap();
        assert_eq!(
            (local.to_string(), remote.to_string(), uid),
            ("127.0.0.1:40000".into(), "127.0.0.1:8080".into(), 1000)
        );
        assert!(parse("").is_none() && parse("1: x y").is_none() && address("01:1").is_none());
    }
}

//! Queues and NAPIs from the kernel's "netdev" generic netlink family.
//!
//! `queue-get` and `napi-get` exist since 6.8 (Documentation/netlink/specs/netdev.yaml); both are unprivileged. How much they
//! report depends on the driver: it must have called netif_queue_set_napi() for a queue to name its NAPI, and
//! netif_napi_set_irq() for a NAPI to name its interrupt. virtio_net does only the first, veth neither.

use coroner_evidence::QueueKind;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::io;
use std::os::fd::OwnedFd;

/// A queue of a device in one network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    pub ifindex: u32,
    pub kind: QueueKind,
    pub index: u32,
    pub napi: Option<u32>,
}

/// A NAPI polls one or more queues, in softirq context or in its own thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Napi {
    pub ifindex: u32,
    pub id: u32,
    pub irq: Option<u32>,
    /// Its thread in our pid namespace; 0 if the thread is outside it.
    pub thread: Option<u32>,
    /// Whether the thread does the polling. `None` before 6.17, where a thread may linger after threading was turned off.
    pub threaded: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Netdev {
    pub queues: Vec<Queue>,
    pub napis: Vec<Napi>,
}

#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel is older than 6.8, or was built without it.
    #[error("the kernel's netdev netlink family does not list queues (needs Linux 6.8)")]
    NoFamily,
    #[error("netdev netlink: {0}")]
    Io(#[from] io::Error),
}

// include/uapi/linux/netlink.h, genetlink.h, netdev.h
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const QUEUE_ID: u16 = 1;
const QUEUE_IFINDEX: u16 = 2;
const QUEUE_TYPE: u16 = 3;
const QUEUE_NAPI_ID: u16 = 4;
const NAPI_IFINDEX: u16 = 1;
const NAPI_ID: u16 = 2;
const NAPI_IRQ: u16 = 3;
const NAPI_PID: u16 = 4;
const NAPI_THREADED: u16 = 8;

const NLMSG_HEADER: usize = 16;
const GENL_HEADER: usize = 4;
/// The kernel fills at most 32 KiB per message of a dump (net/netlink/af_netlink.c, netlink_dump).
const BUFFER: usize = 64 << 10;
/// Bounds a dump: no node has more queues in one namespace.
const MAX_ENTRIES: usize = 1 << 16;

/// Queues and NAPIs of all devices that are up in the network namespace of the calling thread.
pub fn dump() -> Result<Netdev, NetlinkError> {
    let mut connection = Connection::open()?;
    let family = connection.netdev_family()?;
    let mut netdev = Netdev::default();
    // NAPIs first: a namespace without any needs no second query.
    connection.dump(family, NETDEV_CMD_NAPI_GET, |body| {
        if netdev.napis.len() < MAX_ENTRIES {
            netdev.napis.extend(parse_napi(body));
        }
    })?;
    if !netdev.napis.is_empty() {
        connection.dump(family, NETDEV_CMD_QUEUE_GET, |body| {
            if netdev.queues.len() < MAX_ENTRIES {
                netdev.queues.extend(parse_queue(body));
            }
        })?;
    }
    Ok(netdev)
}

struct Connection {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Connection {
    fn open() -> io::Result<Connection> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::GENERIC),
        )?;
        Ok(Connection { socket, buffer: vec![0; BUFFER] })
    }

    fn netdev_family(&mut self) -> Result<u16, NetlinkError> {
        let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        self.send(&request(GENL_ID_CTRL, NLM_F_REQUEST, CTRL_CMD_GETFAMILY, &name))?;
        let received = self.receive()?;
        for message in messages(&self.buffer[..received]) {
            match message.kind {
                NLMSG_ERROR => return Err(refusal(message.body)),
                GENL_ID_CTRL => {
                    let id = attributes(message.body).find(|a| a.kind == CTRL_ATTR_FAMILY_ID).and_then(|a| a.number());
                    if let Some(id) = id.and_then(|id| u16::try_from(id).ok()) {
                        return Ok(id);
                    }
                }
                _ => {}
            }
        }
        Err(NetlinkError::NoFamily)
    }

    /// Passes the body of each answer to `each`, until the dump ends.
    fn dump(&mut self, family: u16, command: u8, mut each: impl FnMut(&[u8])) -> Result<(), NetlinkError> {
        self.send(&request(family, NLM_F_REQUEST | NLM_F_DUMP, command, &[]))?;
        // Generic netlink does not set NLM_F_MULTI on these answers, so only NLMSG_DONE marks the end.
        loop {
            let received = self.receive()?;
            for message in messages(&self.buffer[..received]) {
                match message.kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return Err(refusal(message.body)),
                    kind if kind == family => each(message.body),
                    _ => {}
                }
            }
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        // Unbound and without an address: the kernel binds the socket and is the receiver.
        rustix::net::send(&self.socket, message, SendFlags::empty())?;
        Ok(())
    }

    fn receive(&mut self) -> io::Result<usize> {
        loop {
            match rustix::net::recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Ok((received, _)) => return Ok(received.min(BUFFER)),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// ENOENT: no such family. EOPNOTSUPP: the family of 6.3 to 6.7, which only lists devices.
fn refusal(body: &[u8]) -> NetlinkError {
    match number(body).map(|n| (n as i32).wrapping_neg()) {
        Some(libc::ENOENT | libc::EOPNOTSUPP) => NetlinkError::NoFamily,
        Some(errno) => NetlinkError::Io(io::Error::from_raw_os_error(errno)),
        None => NetlinkError::Io(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

fn request(kind: u16, flags: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let length = NLMSG_HEADER + GENL_HEADER + attributes.len();
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(1u32.to_ne_bytes()); // sequence
    message.extend(0u32.to_ne_bytes()); // port: the kernel fills it in
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    message
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

struct Message<'a> {
    kind: u16,
    /// The part after the netlink header: generic netlink header and attributes, or an error number.
    body: &'a [u8],
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = number(bytes)? as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let body = bytes.get(NLMSG_HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, body })
    })
}

struct Attribute<'a> {
    kind: u16,
    value: &'a [u8],
}

impl Attribute<'_> {
    /// The value, whatever its width: `uint` attributes come as 4 or 8 bytes.
    fn number(&self) -> Option<u64> {
        match self.value.len() {
            2 => Some(u16::from_ne_bytes(self.value.try_into().ok()?).into()),
            4 => Some(u32::from_ne_bytes(self.value.try_into().ok()?).into()),
            8 => Some(u64::from_ne_bytes(self.value.try_into().ok()?)),
            _ => None,
        }
    }
}

/// The attributes after the generic netlink header.
fn attributes(body: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    const FLAGS: u16 = 0xc000; // nested, network byte order
    let mut bytes = body.get(GENL_HEADER..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & !FLAGS;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Attribute { kind, value })
    })
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn parse_queue(body: &[u8]) -> Option<Queue> {
    let (mut ifindex, mut index, mut kind, mut napi) = (None, None, None, None);
    for attribute in attributes(body) {
        let value = attribute.number().and_then(|n| u32::try_from(n).ok());
        match attribute.kind {
            QUEUE_IFINDEX => ifindex = value,
            QUEUE_ID => index = value,
            QUEUE_TYPE => {
                kind = match value {
                    Some(0) => Some(QueueKind::Rx),
                    Some(1) => Some(QueueKind::Tx),
                    _ => None,
                }
            }
            QUEUE_NAPI_ID => napi = value,
            _ => {}
        }
    }
    Some(Queue { ifindex: ifindex?, kind: kind?, index: index?, napi })
}

fn parse_napi(body: &[u8]) -> Option<Napi> {
    let (mut ifindex, mut id, mut irq, mut thread, mut threaded) = (None, None, None, None, None);
    for attribute in attributes(body) {
        let number = attribute.number();
        let value = number.and_then(|n| u32::try_from(n).ok());
        match attribute.kind {
            NAPI_IFINDEX => ifindex = value,
            NAPI_ID => id = value,
            NAPI_IRQ => irq = value,
            NAPI_PID => thread = value,
            NAPI_THREADED => threaded = number.map(|n| n != 0),
            _ => {}
        }
    }
    Some(Napi { ifindex: ifindex?, id: id?, irq, thread, threaded })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(attributes: &[(u16, u32)]) -> Vec<u8> {
        let mut body = vec![NETDEV_CMD_NAPI_GET, 1, 0, 0];
        for (kind, value) in attributes {
            body.extend(attribute(*kind, &value.to_ne_bytes()));
        }
        body
    }

    #[test]
    fn a_napi_with_and_without_its_thread() {
        let threaded = body(&[(2, 259), (1, 2), (8, 1), (4, 17022), (5, 0)]);
        let expected = Napi { ifindex: 2, id: 259, irq: None, thread: Some(17022), threaded: Some(true) };
        assert_eq!(parse_napi(&threaded), Some(expected));
        let in_softirq = body(&[(2, 8197), (1, 2), (3, 145)]);
        let expected = Napi { ifindex: 2, id: 8197, irq: Some(145), thread: None, threaded: None };
        assert_eq!(parse_napi(&in_softirq), Some(expected));
        assert_eq!(parse_napi(&body(&[(1, 2)])), None, "no id");
    }

    #[test]
    fn a_queue_of_unknown_type_is_skipped() {
        let queue = Queue { ifindex: 4, kind: QueueKind::Tx, index: 3, napi: Some(257) };
        assert_eq!(parse_queue(&body(&[(1, 3), (3, 1), (2, 4), (4, 257)])), Some(queue));
        assert_eq!(parse_queue(&body(&[(1, 3), (3, 2), (2, 4)])), None);
    }

    #[test]
    fn this_kernel_lists_the_queues_of_devices_that_are_up() {
        let netdev = match dump() {
            Ok(netdev) => netdev,
            Err(NetlinkError::NoFamily) => return, // an older kernel; its devices are mapped by name
            Err(e) => panic!("{e}"),
        };
        for queue in netdev.queues.iter().filter(|q| q.napi.is_some()) {
            let napi = netdev.napis.iter().find(|n| Some(n.id) == queue.napi);
            assert_eq!(napi.map(|n| n.ifindex), Some(queue.ifindex), "{queue:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut total = 0;
            for message in messages(&bytes) {
                total += NLMSG_HEADER + message.body.len();
                let _ = (parse_queue(message.body), parse_napi(message.body), refusal(message.body));
            }
            prop_assert!(total <= bytes.len());
            let _ = (parse_queue(&bytes), parse_napi(&bytes), refusal(&bytes));
        }

        #[test]
        fn requests_can_be_parsed_back(id in any::<u32>(), ifindex in any::<u32>(), irq in any::<u32>()) {
            let mut attributes = attribute(NAPI_ID, &id.to_ne_bytes());
            attributes.extend(attribute(NAPI_IFINDEX, &ifindex.to_ne_bytes()));
            attributes.extend(attribute(NAPI_IRQ, &irq.to_ne_bytes()));
            let bytes = [request(20, 0, 11, &attributes), request(NLMSG_DONE, 0, 0, &[])].concat();
            let kinds: Vec<u16> = messages(&bytes).map(|m| m.kind).collect();
            prop_assert_eq!(kinds, vec![20, NLMSG_DONE]);
            let napi = messages(&bytes).next().and_then(|m| parse_napi(m.body));
            prop_assert_eq!(napi, Some(Napi { ifindex, id, irq: Some(irq), thread: None, threaded: None }));
        }
    }
}

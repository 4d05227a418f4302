//! Packets for one core: sent in large bursts that the kernel splits, and steered to the core that receives them.

use super::net;
use super::spin::name_this_thread;
use crate::syscalls::{segment_datagrams, unshare_mounts};
use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_reuseaddr, set_socket_send_buffer_size_force};
use rustix::net::{AddressFamily, SocketType, bind, socket};
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// Payload of one packet, and packets per system call: the sender should need little of its own core. Before 6.9 the kernel
/// takes at most 64 (UDP_MAX_SEGMENTS).
const PAYLOAD: usize = 64;
const PER_CALL: usize = 40;

/// Sends `rate` packets per second. The device must not segment by itself: `ip link set DEV gso_max_segs 1`.
pub fn stream(comm: &str, netns: &Path, to: SocketAddrV4, rate: u64) -> Result<()> {
    name_this_thread(comm)?;
    net::enter(netns)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_broadcast(true)?;
    segment_datagrams(&socket, PAYLOAD as i32).context("cannot let the kernel cut datagrams (Linux 4.18 or later)")?;
    set_socket_send_buffer_size_force(&socket, 64 << 20)?;
    socket.connect(to)?;
    let (start, mut sent, packets) = (Instant::now(), 0u64, [0u8; PAYLOAD * PER_CALL]);
    loop {
        let due = (start.elapsed().as_secs_f64() * rate as f64) as u64;
        // After a pause, catch up with at most one burst.
        sent = sent.max(due.saturating_sub(rate / 100));
        while sent + PER_CALL as u64 <= due {
            // Errors are part of the scenario: port closed, no buffer.
            let _ = socket.send(&packets);
            sent += PER_CALL as u64;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Steers a device's packets to one core (RPS), and listens on `sockets` sockets: each gets a copy of a broadcast.
pub fn receive(netns: &Path, device: &str, port: u16, steer_to: u32, sockets: u32) -> Result<()> {
    net::enter(netns)?;
    let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    let listeners = (0..sockets).map(|_| {
        let listener = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        set_socket_reuseaddr(&listener, true)?;
        // Nobody reads the packets: a full buffer is the cheapest sink.
        set_socket_recv_buffer_size(&listener, 0)?;
        bind(&listener, &address)?;
        Ok(listener)
    });
    let _listeners = listeners.collect::<rustix::io::Result<Vec<_>>>().with_context(|| format!("port {port}"))?;
    // sysfs shows the devices of the namespace in which it was mounted.
    unshare_mounts()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).context("make mounts private")?;
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None).context("mount sysfs")?;
    let file = format!("/sys/class/net/{device}/queues/rx-0/rps_cpus");
    fs::write(&file, mask_of(steer_to)).with_context(|| format!("cannot steer packets: {file}"))?;
    let steered = fs::read_to_string(&file)?;
    ensure!(steered.bytes().any(|b| b.is_ascii_hexdigit() && b != b'0'), "{file} stays {steered}");
    loop {
        std::thread::park();
    }
}

/// A core mask as the kernel parses it: groups of 32 cores, the highest group first.
fn mask_of(core: u32) -> String {
    let mut mask = format!("{:x}", 1u32 << (core % 32));
    mask.push_str(&",00000000".repeat((core / 32) as usize));
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_one_bit() {
        assert_eq!(
            [0, 5, 31, 32, 95].map(mask_of),
            ["1", "20", "80000000", "1,00000000", "80000000,00000000,00000000"]
        );
    }
}

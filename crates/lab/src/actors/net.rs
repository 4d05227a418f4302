//! Both ends of a veth pair.

use crate::syscalls::{Offload, set_offload, unshare_mounts};
use anyhow::{Context, Result};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

pub(super) fn enter(netns: &Path) -> Result<()> {
    let file = File::open(netns).with_context(|| netns.display().to_string())?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter {}", netns.display()))
}

/// Sends `rate` packets per second, in bursts like a busy sender.
pub fn flood(netns: &Path, device: &str, to: SocketAddrV4, rate: u64) -> Result<()> {
    enter(netns)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // A sender with TSO hands packets straight to the stack; only without it do they pass the receiver's NAPI
    // (veth_skb_is_eligible_for_gro in drivers/net/veth.c).
    for offload in [Offload::Tso, Offload::Gso, Offload::TxChecksum] {
        set_offload(socket.as_fd(), device, offload, false).with_context(|| format!("{device}: {offload:?} off"))?;
    }
    // Packets in the full ring count against this buffer: a small one would block us instead of dropping.
    set_socket_send_buffer_size_force(&socket, 64 << 20)?;
    socket.connect(to)?;
    let (start, mut sent, packet) = (Instant::now(), 0u64, [0u8; 200]);
    let pause = Duration::from_micros((1_000_000 / rate.max(1)).max(200));
    loop {
        let due = (start.elapsed().as_secs_f64() * rate as f64) as u64;
        // After a pause, catch up with at most one burst.
        sent = sent.max(due.saturating_sub(rate / 100));
        while sent < due {
            // Errors are part of the scenario: port closed, no buffer.
            let _ = socket.send(&packet);
            sent += 1;
        }
        std::thread::sleep(pause);
    }
}

pub fn sink(netns: &Path, device: &str, port: u16) -> Result<()> {
    enter(netns)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    // GRO is what makes veth use NAPI at all.
    set_offload(socket.as_fd(), device, Offload::Gro, true).with_context(|| format!("{device}: gro on"))?;
    // sysfs shows the devices of the namespace in which it was mounted.
    unshare_mounts()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).context("make mounts private")?;
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None).context("mount sysfs")?;
    let threaded = format!("/sys/class/net/{device}/threaded");
    fs::write(&threaded, "1")
        .with_context(|| format!("cannot give {device} a NAPI thread: {threaded} (Linux 5.12 or later)"))?;
    let mut packet = [0u8; 2048];
    loop {
        let _ = socket.recv(&mut packet);
    }
}

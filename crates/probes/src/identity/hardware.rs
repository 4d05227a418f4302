//! Hypervisor and GPUs.

use std::fs::{self, File};
use std::io::Read;

use coroner_evidence::node::Gpu;

use crate::root::Root;

/// A DMI field, without the placeholders of careless vendors.
pub(super) fn dmi(root: &Root, field: &str) -> Option<String> {
    const FILLERS: [&str; 5] = ["None", "Not Specified", "Default string", "To be filled by O.E.M.", "0123456789"];
    root.read_line(&format!("/sys/class/dmi/id/{field}")).filter(|value| !FILLERS.contains(&value.as_str()))
}

/// By prefix of the DMI fields; the same fields as systemd's detect-virt.
const DMI_HYPERVISORS: [(&str, &str); 17] = [
    ("Amazon EC2", "Amazon EC2"),
    ("Google Compute Engine", "Google Compute Engine"),
    ("KubeVirt", "KubeVirt"),
    ("OpenStack", "OpenStack"),
    ("Alibaba Cloud", "Alibaba Cloud"),
    ("DigitalOcean", "DigitalOcean"),
    ("Hetzner", "Hetzner"),
    ("KVM", "KVM"),
    ("QEMU", "QEMU"),
    ("VMware", "VMware"),
    ("VirtualBox", "VirtualBox"),
    ("innotek GmbH", "VirtualBox"),
    ("Xen", "Xen"),
    ("Bochs", "Bochs"),
    ("Parallels", "Parallels"),
    ("BHYVE", "bhyve"),
    ("Apple Virtualization", "Apple Virtualization"),
];

/// `None` on bare metal.
pub(super) fn hypervisor(root: &Root) -> Option<String> {
    if root.read_line("/sys/hypervisor/type").as_deref() == Some("xen") {
        return Some("Xen".to_owned());
    }
    let product = dmi(root, "product_name");
    let vendor = dmi(root, "sys_vendor");
    if vendor.as_deref() == Some("Microsoft Corporation") && product.as_deref() == Some("Virtual Machine") {
        return Some("Microsoft Hyper-V".to_owned());
    }
    // EC2 bare metal: same vendor, no hypervisor.
    if product.as_deref().is_some_and(|p| p.contains(".metal")) {
        return None;
    }
    let fields = [product, vendor, dmi(root, "board_vendor"), dmi(root, "bios_vendor")];
    let by_dmi = fields.iter().flatten().find_map(|field| {
        let (_, name) = DMI_HYPERVISORS.iter().find(|(begin, _)| field.starts_with(begin))?;
        Some((*name).to_owned())
    });
    by_dmi.or_else(|| by_clock(root)).or_else(|| by_flag(root))
}

/// Small hypervisors (Firecracker) have no DMI, but a clock source.
fn by_clock(root: &Root) -> Option<String> {
    let clocks = root.read_line("/sys/devices/system/clocksource/clocksource0/available_clocksource")?;
    let by_name = [("kvm-clock", "KVM"), ("hyperv_clocksource", "Microsoft Hyper-V"), ("xen", "Xen")];
    let (_, name) = by_name.iter().find(|(clock, _)| clocks.split(' ').any(|c| c.starts_with(clock)))?;
    Some((*name).to_owned())
}

/// The flag that x86 processors show in a virtual machine. Tried last, and only for the first core, as some kernels measure every
/// core's frequency for this file.
fn by_flag(root: &Root) -> Option<String> {
    let mut text = Vec::new();
    File::open(root.path("/proc/cpuinfo")).ok()?.take(4096).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let flags = text.lines().find(|line| line.starts_with("flags"))?;
    flags.split_whitespace().any(|flag| flag == "hypervisor").then(|| "unknown (hypervisor CPU flag)".to_owned())
}

const NVIDIA: &str = "0x10de";
const AMD: &str = "0x1002";

/// By PCI class: VGA, 3D and display controllers, processing accelerators. NVIDIA's own files name the model.
pub(super) fn gpus(root: &Root) -> Vec<Gpu> {
    let version = root.read("/proc/driver/nvidia/version").ok().and_then(|text| nvidia_version(&text));
    let mut gpus: Vec<Gpu> = Vec::new();
    for bus in root.list("/sys/bus/pci/devices").unwrap_or_default() {
        let read = |name: &str| root.read_line(&format!("/sys/bus/pci/devices/{bus}/{name}"));
        let Some(class) = read("class") else { continue };
        if !["0x0300", "0x0302", "0x0380", "0x1200"].iter().any(|c| class.starts_with(c)) {
            continue;
        }
        let driver = fs::read_link(root.path(&format!("/sys/bus/pci/devices/{bus}/driver"))).ok();
        let driver = driver.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
        let gpu = match read("vendor").as_deref() {
            Some(NVIDIA) => Gpu {
                model: nvidia_model(root, &bus),
                driver: driver.map(|name| match (&version, name.as_str()) {
                    (Some(version), "nvidia") => format!("nvidia {version}"),
                    _ => name,
                }),
                bus,
            },
            Some(AMD) => Gpu { model: read("product_name"), driver, bus },
            _ => continue,
        };
        gpus.push(gpu);
    }
    // A container may have NVIDIA's files but not the node's /sys.
    for bus in root.list("/proc/driver/nvidia/gpus").unwrap_or_default() {
        if !gpus.iter().any(|gpu| gpu.bus.eq_ignore_ascii_case(&bus)) {
            let driver = version.as_ref().map(|version| format!("nvidia {version}"));
            gpus.push(Gpu { model: nvidia_model(root, &bus), driver, bus });
        }
    }
    gpus
}

fn nvidia_model(root: &Root, bus: &str) -> Option<String> {
    let text = root.read(&format!("/proc/driver/nvidia/gpus/{bus}/information")).ok()?;
    let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim();
    (!model.is_empty() && model != "Unknown").then(|| model.to_owned())
}

/// `535.129.03` from `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023` or
/// `… Open Kernel Module for x86_64  560.35.03  Release Build …`.
pub(super) fn nvidia_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(|p| p.parse::<u32>().is_ok());
    line.split_whitespace().find(is_version).map(str::to_owned)
}

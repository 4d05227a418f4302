//! A zombie pinned only by swap, on the live node, as root.

use super::host_tests::{METHODS, Scene, scan_by};
use crate::test_tree::wait_for;
use std::process::Command;

/// Our own swap file, active until dropped.
struct SwapFile(tempfile::TempPath);

const SWAP_BYTES: usize = 8 << 20;

impl SwapFile {
    /// `None`, after printing the reason, where the file system or kernel supports no swap file.
    fn on() -> Option<SwapFile> {
        let file =
            tempfile::Builder::new().prefix("coroner-test-swap-").tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        // Without holes and on disk: swapon asks the file system for its blocks.
        std::io::Write::write_all(&mut file.as_file(), &vec![0; SWAP_BYTES]).unwrap();
        file.as_file().sync_all().unwrap();
        let path = file.into_temp_path();
        for command in ["mkswap", "swapon"] {
            let output = Command::new(command).arg(&path).output();
            if !output.as_ref().is_ok_and(|o| o.status.success()) {
                coroner_lab::skip(&format!("needs a swap file; {command}: {output:?}"));
                return None;
            }
        }
        Some(SwapFile(path))
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        let status = Command::new("swapoff").arg(&self.0).status();
        assert!(status.as_ref().is_ok_and(|s| s.success()) || std::thread::panicking(), "swapoff: {status:?}");
    }
}

#[test]
fn a_zombie_pinned_only_by_swap_is_named_with_its_swap() {
    // With a swap file, the pages of others' cgroups would leave memory, too.
    let Some(mut scene) = Scene::alone("swap") else { return };
    if scene.parent.hierarchy().version != 1 {
        return coroner_lab::skip("needs memory.force_empty (v1) to swap pages out");
    }
    if scene.parent.read("memory.memsw.usage_in_bytes").is_err() {
        return coroner_lab::skip("needs a kernel that counts swap by cgroup (swapaccount=1)");
    }
    let Some(swap) = SwapFile::on() else { return };
    let page = rustix::param::page_size() as u64;
    // A dead child with 48 pages below a dead parent with 16: the kernel's counters of the parent say 64.
    let script = format!(
        "set -e; mkdir -p \"$0/pod/child\"
         for z in pod:16 pod/child:48; do
           echo $$ > \"$0/${{z%:*}}/cgroup.procs\"
           dd if=/dev/zero of=\"$1/$(basename ${{z%:*}})\" bs={page} count=${{z#*:}} 2>/dev/null
           echo $$ > \"$0/home/cgroup.procs\"
         done"
    );
    let status = Command::new("sh").arg("-c").arg(script).arg(scene.parent.dir()).arg(scene.tmpfs()).status().unwrap();
    assert!(status.success(), "{status}");
    let swapped = |cgroup: &str| {
        let stat = std::fs::read_to_string(scene.parent.dir().join(cgroup).join("memory.stat")).unwrap();
        let line = |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap();
        (line("swap "), line("total_swap "))
    };
    for (cgroup, pages) in [("pod/child", 48), ("pod", 16)] {
        wait_for("the pages are swapped out", || {
            let _ = std::fs::write(scene.parent.dir().join(cgroup).join("memory.force_empty"), "0");
            swapped(cgroup).0 >= pages * page
        });
    }
    for cgroup in ["pod/child", "pod"] {
        let dir = scene.parent.dir().join(cgroup);
        wait_for("the cgroup is left and removed", || std::fs::remove_dir(&dir).is_ok() || !dir.exists());
    }
    // Dead, and found by both methods; what they hold matches the kernel's count for their live parent.
    for method in METHODS {
        wait_for(&format!("{method:?}: both hold nothing but swap"), || {
            let scan = scan_by(method, true);
            let below = scene.below(&scan);
            let told = |name: &str| {
                below.get(name).map(|z| {
                    (z.held.swap.map(|s| s / page), z.held.total() / page, z.references.is_some_and(|r| r > 0))
                })
            };
            let told = (told("pod"), told("pod/child"));
            eprintln!("{method:?}: {told:?}");
            told == (Some((Some(16), 0, true)), Some((Some(48), 0, true)))
        });
        // Which it sums every two seconds.
        wait_for("the kernel counts the same", || swapped("").1 == 64 * page);
    }
    // Swapped-in pages are charged to the reader (mem_cgroup_swapin_charge_folio), so nothing pins the zombies any more.
    drop(swap);
    wait_for("swapoff frees them", || scene.below(&scan_by(METHODS[0], false)).is_empty());
    scene.clear();
}

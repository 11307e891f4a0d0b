//! Knows which lines of the kernel log matter for training. It only reads text; the agent gets the
//! lines.
//!
//! The patterns come from the form of real lines (see the tests), not from another project's
//! expressions. A line that is not known means nothing.

use super::xid::{Channel, Xid};

/// The meaning of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Xid(Xid),
    /// A check of the table, about the GPU or NIC at this PCI address. `None`: about the node.
    Check {
        check: &'static str,
        pci: Option<String>,
        text: String,
    },
}

/// The kernel killed a process because a cgroup had reached its memory limit.
pub const CGROUP_OOM: &str = "cgroup-oom";
/// The kernel killed a process because the machine had no memory left.
pub const HOST_OOM: &str = "kernel-oom";

/// How many bytes of a line are kept as evidence.
const TEXT_MAX: usize = 200;

/// Reads the text of one record, without its prefix.
pub fn read(text: &str) -> Option<Line> {
    let text = text.trim();
    if let Some(at) = text.find("NVRM: Xid (") {
        return xid(&text[at + "NVRM: Xid (".len()..]);
    }
    let lower = text.to_ascii_lowercase();
    if lower.contains("nvrm") && lower.contains("fallen off the bus") {
        return Some(Line::Xid(Xid {
            pci: pci_in(text)?,
            code: 79,
            channel: Channel::Log,
            fatal: None,
            detail: kept(text),
        }));
    }
    let (check, about_device) = check(&lower)?;
    Some(Line::Check {
        check,
        pci: about_device.then(|| pci_in(text)).flatten(),
        text: kept(text),
    })
}

/// Reads the part after `NVRM: Xid (`: `PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen
/// off the bus.`
fn xid(rest: &str) -> Option<Line> {
    let (address, rest) = rest.split_once(')')?;
    let pci = normal_pci(address.trim().trim_start_matches("PCI:"))?;
    let rest = rest.trim_start_matches(':').trim_start();
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let code = rest[..digits].parse().ok()?;
    let detail = rest[digits..].trim_start_matches([',', ' ']);
    let lower = detail.to_ascii_lowercase();
    let fatal = match code {
        144..=150 if lower.contains("nonfatal") || lower.contains("non-fatal") => Some(false),
        144..=150 if lower.contains("fatal") => Some(true),
        _ => None,
    };
    Some(Line::Xid(Xid {
        pci,
        code,
        channel: Channel::Log,
        fatal,
        detail: kept(detail),
    }))
}

/// The check, and whether the line names the device that it is about.
fn check(line: &str) -> Option<(&'static str, bool)> {
    let has = |words: &[&str]| words.iter().all(|word| line.contains(word));
    if has(&["nvidia-nvswitch", "sxid"]) {
        let fatal = has(&["fatal"]) && !has(&["non-fatal"]) && !has(&["nonfatal"]);
        return Some((if fatal { "sxid-fatal" } else { "sxid" }, false));
    }
    if has(&["mlx5_core"]) {
        return match () {
            () if has(&["detected insufficient power"]) => Some(("nic-power", true)),
            () if has(&["high temperature"])
                || has(&["over-temp"])
                || has(&["temperature warning"]) =>
            {
                Some(("nic-heat", true))
            }
            () if has(&["cmd", "failed"]) || has(&["timeout", "command"]) => {
                Some(("nic-command-failure", true))
            }
            () => None,
        };
    }
    if has(&["blocked for more than", "seconds"])
        && (has(&["nvidia"]) || has(&["nv_"]) || has(&["python"]))
    {
        return Some(("kernel-hung-task", false));
    }
    if has(&["hardware error", "uncorrected"]) || has(&["mce:", "uncorrected"]) {
        return Some(("machine-check", false));
    }
    // Both lines say "out of memory: Killed process 77 (python3)".
    if has(&["memory cgroup out of memory"]) {
        return Some((CGROUP_OOM, false));
    }
    if has(&["out of memory: killed process"]) {
        return Some((HOST_OOM, false));
    }
    None
}

fn kept(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// The first word that is a PCI address.
fn pci_in(text: &str) -> Option<String> {
    text.split(|c: char| !c.is_ascii_hexdigit() && c != ':' && c != '.')
        .find_map(|word| normal_pci(word.trim_matches(['.', ':'])))
}

/// `0000:1b:00.0`, as sysfs writes it, from `0000:1B:00`, `00000000:1b:00.0` or `1b:00.0`. A domain
/// of more than 16 bits stays whole.
pub fn normal_pci(address: &str) -> Option<String> {
    let (place, function) = address.split_once('.').unwrap_or((address, "0"));
    let parts: Vec<&str> = place.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [domain, bus, device] => (domain, bus, device),
        _ => return None,
    };
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        digits
            .contains(&text.len())
            .then(|| u32::from_str_radix(text, 16).ok())
            .flatten()
    };
    let (domain, bus, device) = (
        number(domain, 4..=8)?,
        number(bus, 2..=2)?,
        number(device, 2..=2)?,
    );
    let function = number(function, 1..=1)?;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Option<(String, u32, Option<bool>)> {
        match read(text)? {
            Line::Xid(xid) => Some((xid.pci, xid.code, xid.fatal)),
            Line::Check { .. } => None,
        }
    }

    #[test]
    fn xids_are_read_in_every_form() {
        let gpu = || "0000:1b:00.0".to_owned();
        for (text, code_and_word) in [
            (
                "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                (gpu(), 79, None),
            ),
            (
                "NVRM: Xid (PCI:0000:1B:00): 13, Graphics SM Warp Exception",
                (gpu(), 13, None),
            ),
            ("NVRM: Xid (0000:1b:00.0): 48, DBE", (gpu(), 48, None)),
            (
                "NVRM: Xid (PCI:00000001:00:00): 63, pid=1",
                ("0001:00:00.0".into(), 63, None),
            ),
            ("NVRM: Xid (PCI:0000:1b:00): 999", (gpu(), 999, None)),
            (
                "NVRM: Xid (PCI:0000:1b:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 03 (0x00000004 0x00000000)",
                (gpu(), 145, Some(false)),
            ),
            (
                "NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x02a40004 0x0)",
                (gpu(), 149, Some(true)),
            ),
            (
                "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
                (gpu(), 79, None),
            ),
            (
                "NVRM: GPU at PCI:0000:1b:00: has fallen off the bus and is not responding to commands.",
                (gpu(), 79, None),
            ),
        ] {
            assert_eq!(code(text), Some(code_and_word), "{text}");
        }
    }

    #[test]
    fn other_lines_that_mean_something() {
        let of = |text: &str| match read(text) {
            Some(Line::Check { check, pci, .. }) => Some((check, pci)),
            _ => None,
        };
        for (text, check, pci) in [
            (
                "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress",
                "sxid",
                None,
            ),
            (
                "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
                "sxid-fatal",
                None,
            ),
            (
                "mlx5_core 0000:5e:00.0: port_module:249: mlx5_pcie_event:: Detected insufficient power on the PCIe slot (27W).",
                "nic-power",
                Some("0000:5e:00.0"),
            ),
            (
                "mlx5_core 0000:5e:00.0: temp_warn:High temperature on sensors",
                "nic-heat",
                Some("0000:5e:00.0"),
            ),
            (
                "INFO: task nvidia-smi:4242 blocked for more than 120 seconds.",
                "kernel-hung-task",
                None,
            ),
            (
                "mce: [Hardware Error]: Machine check: Uncorrected",
                "machine-check",
                None,
            ),
            (
                "Out of memory: Killed process 77 (python3) total-vm:1kB",
                "kernel-oom",
                None,
            ),
            (
                "Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB, anon-rss:1kB",
                "cgroup-oom",
                None,
            ),
            (
                "Memory cgroup out of memory: Kill process 77 (python3) score 1 or sacrifice child",
                "cgroup-oom",
                None,
            ),
        ] {
            assert_eq!(of(text), Some((check, pci.map(str::to_owned))), "{text}");
        }
    }

    #[test]
    fn other_lines_mean_nothing() {
        for text in [
            "",
            "usb 1-1: new device",
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
            "NVRM: Xid (PCI:0000:1b:00): many",
            "NVRM: Xid (PCI:0000:1b",
            "NVRM: Xid (elsewhere): 79, x",
            "fallen off the bus, a novel",
            "INFO: task jbd2/sda1-8:123 blocked for more than 120 seconds.",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn addresses_are_written_one_way() {
        assert_eq!(
            normal_pci("00000000:1B:00.0").as_deref(),
            Some("0000:1b:00.0")
        );
        assert_eq!(
            normal_pci("10001:00:00.1").as_deref(),
            Some("10001:00:00.1")
        );
        for wrong in [
            "",
            "1b:00.0",
            "0000:1b",
            "0000:1b:00.00",
            "zzzz:1b:00.0",
            "0000:1b:00:00",
        ] {
            assert_eq!(normal_pci(wrong), None, "{wrong}");
        }
    }
}

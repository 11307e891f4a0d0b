//! What can break, and be mended, while programs look at it.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
};

use anyhow::{Context, bail};

use crate::{
    hardware::{Ecc, Gpu, Hardware, now_ms},
    machine, shapes,
};

/// All faults, for the help.
pub const FAULTS: &str = "\
gpuN   xid=CODE          the driver's event and its line in the kernel log (79 also takes the GPU off the bus)
       lost              every call answers that it is lost
       error=CODE        every call answers this NVML code (16: reset required, 999: unknown)
       recovery=0..4     the driver's own verdict (field 230)
       ecc=N             N uncorrectable errors more, and the driver's event
       corrected=N | sram-corrected=N   N corrected errors more
       silent-ecc=N      as ecc, but without an event
       remap=pending | remap=failed
       throttle=on | throttle=off
       link=K:down | link=K:up | crc=K:N
       width=LANES       PCIe lanes in use
       process=PID       somebody's process holds memory
       memory=MIB        in use, whoever uses it
       heat=CELSIUS      of its memory, which may have 95
       busy=PERCENT | clock=MHZ
       healthy           as it was made, and reset
driver hang | resume | error=CODE
fabric rack=N | clique=N | channel=on | channel=off   (of a machine that is part of a multi-node NVLink domain)
NAME   down | up | flap | rate=GBIT | errors=N | gone      (a NIC: mlx5_0, eth0, ...)
       counter=NAME:N    one of its port's counters, as symbol_error:500
       unanswered=N      commands of an EFA device
kernel log=TEXT          a line of the kernel log
       clock=set | clock=unset   by a time service";

pub fn inject(dir: &Path, target: &str, fault: &str) -> anyhow::Result<()> {
    let mut hardware = machine::read(dir)?;
    let (word, value) = fault.split_once('=').unwrap_or((fault, ""));
    match target {
        "driver" => driver(&mut hardware, word, value)?,
        "fabric" => fabric(dir, &mut hardware, word, value)?,
        "kernel" => return kernel(dir, word, value),
        _ => match target
            .strip_prefix("gpu")
            .and_then(|number| number.parse::<usize>().ok())
        {
            Some(number) => gpu(dir, &mut hardware, number, word, value)?,
            None => return nic(&dir.join(machine::SYSROOT), target, word, value),
        },
    }
    hardware.write(dir)
}

fn number<T: std::str::FromStr>(word: &str, value: &str) -> anyhow::Result<T> {
    value
        .parse()
        .ok()
        .with_context(|| format!("{word}={value}: not a number that fits"))
}

fn driver(hardware: &mut Hardware, word: &str, value: &str) -> anyhow::Result<()> {
    match word {
        "hang" => hardware.hang = true,
        "resume" => (hardware.hang, hardware.init_error) = (false, None),
        "error" => hardware.init_error = Some(number(word, value)?),
        _ => bail!("driver: {word:?} is none of hang, resume, error=CODE"),
    }
    Ok(())
}

/// Faults of the NVLink fabric: another rack, another part of it, or no way to the others.
fn fabric(dir: &Path, hardware: &mut Hardware, word: &str, value: &str) -> anyhow::Result<()> {
    let member = |gpu: &&mut Gpu| {
        gpu.fabric
            .as_ref()
            .is_some_and(|fabric| fabric.cluster != [0; 16])
    };
    let fabrics: Vec<_> = hardware
        .gpus
        .iter_mut()
        .filter(member)
        .filter_map(|gpu| gpu.fabric.as_mut())
        .collect();
    if fabrics.is_empty() {
        bail!("fabric: this machine is in no multi-node NVLink domain");
    }
    let channel = dir.join(machine::SYSROOT).join(shapes::CHANNEL);
    match (word, value) {
        ("rack", _) => {
            let cluster = shapes::cluster(number(word, value)?);
            fabrics
                .into_iter()
                .for_each(|fabric| fabric.cluster = cluster);
        }
        ("clique", _) => {
            let clique = number(word, value)?;
            fabrics
                .into_iter()
                .for_each(|fabric| fabric.clique = clique);
        }
        ("channel", "on") => fs::write(&channel, "").context("make the channel")?,
        ("channel", "off") => fs::remove_file(&channel).context("take the channel away")?,
        _ => bail!("fabric: {word:?} is none of rack=N, clique=N, channel=on, channel=off"),
    }
    Ok(())
}

fn gpu(
    dir: &Path,
    hardware: &mut Hardware,
    at: usize,
    word: &str,
    value: &str,
) -> anyhow::Result<()> {
    let there = hardware.gpus.len();
    let gpu = hardware
        .gpus
        .get_mut(at)
        .with_context(|| format!("gpu{at}: there are {there} GPUs, counted from 0"))?;
    match word {
        "lost" => gpu.lost = true,
        "error" => gpu.error = Some(number(word, value)?),
        "recovery" => gpu.recovery = Some(number(word, value)?),
        "ecc" | "silent-ecc" => {
            gpu.ecc.get_or_insert_with(Ecc::default).uncorrected += number::<u64>(word, value)?;
            const DOUBLE_BIT: u64 = 2;
            if word == "ecc" {
                hardware.event(at, DOUBLE_BIT, 0);
            }
        }
        "sram-corrected" => {
            gpu.ecc.get_or_insert_with(Ecc::default).sram_corrected += number::<u64>(word, value)?
        }
        "corrected" => {
            gpu.ecc.get_or_insert_with(Ecc::default).corrected += number::<u64>(word, value)?
        }
        "remap" => {
            let remap = gpu.remap.get_or_insert_default();
            match value {
                "pending" => remap.pending = true,
                "failed" => remap.failure = true,
                _ => bail!("remap={value}: pending or failed"),
            }
        }
        // A hardware thermal slowdown.
        "throttle" => gpu.throttle = if value == "on" { 0x40 } else { 0 },
        "link" | "crc" => link(gpu, word, value)?,
        "width" => gpu.pcie.width = number(word, value)?,
        "heat" => gpu.memory_temperature = Some((number(word, value)?, 95)),
        "busy" => gpu.utilization = number(word, value)?,
        "clock" => gpu.clock.0 = number(word, value)?,
        "memory" => gpu.memory_used = number::<u64>(word, value)? << 20,
        "process" => gpu.processes.push((number(word, value)?, 1 << 30)),
        "healthy" => {
            *gpu = Gpu {
                reset_ms: now_ms(),
                ..well(dir, at)?
            }
        }
        "xid" => {
            let code: u32 = number(word, value)?;
            gpu.lost |= code == 79;
            let pci = gpu.pci[4..].trim_end_matches(".0").to_lowercase();
            let words = if code == 79 {
                ", GPU has fallen off the bus."
            } else {
                ""
            };
            kernel_log(
                dir,
                &format!("NVRM: Xid (PCI:{pci}): {code}, pid=4242, name=python3{words}"),
            )?;
            const XID: u64 = 8;
            hardware.event(at, XID, u64::from(code));
        }
        _ => bail!("gpu{at}: {word:?} is no fault; known are:\n{FAULTS}"),
    }
    Ok(())
}

fn well(dir: &Path, at: usize) -> anyhow::Result<Gpu> {
    let text =
        fs::read_to_string(dir.join(machine::WELL)).context("read the machine as it was made")?;
    let hardware: Hardware =
        serde_json::from_str(&text).context("read the machine as it was made")?;
    hardware
        .gpus
        .into_iter()
        .nth(at)
        .context("the machine was made with fewer GPUs")
}

fn link(gpu: &mut Gpu, word: &str, value: &str) -> anyhow::Result<()> {
    let (link, what) = value
        .split_once(':')
        .with_context(|| format!("{word}={value}: not LINK:VALUE"))?;
    let (at, there) = (number::<usize>(word, link)?, gpu.links.len());
    let link = gpu
        .links
        .get_mut(at)
        .with_context(|| format!("link {at}: there are {there}"))?;
    match (word, what) {
        ("link", "down") => link.active = false,
        ("link", "up") => link.active = true,
        ("crc", errors) => link.crc_errors += number::<u64>(word, errors)?,
        _ => bail!("link={value}: down or up"),
    }
    Ok(())
}

fn kernel(dir: &Path, word: &str, value: &str) -> anyhow::Result<()> {
    // The status and the largest error, as adjtimex returns them.
    let clock = |answer: &str| {
        fs::write(dir.join(machine::SYSROOT).join("adjtimex"), answer)
            .context("set the clock's state")
    };
    match (word, value) {
        ("log", text) => kernel_log(dir, text),
        ("clock", "set") => clock("8193 500\n"),
        ("clock", "unset") => clock("64 16000000\n"),
        _ => bail!("kernel: known are log=TEXT, clock=set and clock=unset"),
    }
}

/// Appends one record in the form of `/dev/kmsg`.
fn kernel_log(dir: &Path, text: &str) -> anyhow::Result<()> {
    let path = dir.join(machine::SYSROOT).join("dev/kmsg");
    let sequence = fs::read_to_string(&path).map_or(0, |text| text.lines().count());
    let mut log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .with_context(|| format!("open {}", path.display()))?;
    Ok(log.write_all(format!("3,{sequence},{},-;{text}\n", sequence * 1_000).as_bytes())?)
}

fn nic(root: &Path, name: &str, word: &str, value: &str) -> anyhow::Result<()> {
    let device = root.join("sys/class/infiniband").join(name);
    let port = device.join("ports/1");
    let interface = root.join("sys/class/net").join(name);
    let is_rdma = port.is_dir();
    if !is_rdma && !interface.is_dir() {
        bail!("{name:?} is neither gpuN, driver, kernel nor a NIC of this machine");
    }
    let write = |folder: &Path, file: &str, text: &str| {
        fs::write(folder.join(file), format!("{text}\n"))
            .with_context(|| format!("write {}", folder.join(file).display()))
    };
    let add = |folder: &Path, file: &str, more: u64| {
        let before: u64 = fs::read_to_string(folder.join(file))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0);
        write(folder, file, &(before + more).to_string())
    };
    let up = |up: bool| match is_rdma {
        true => {
            write(&port, "state", if up { "4: ACTIVE" } else { "1: DOWN" })?;
            write(
                &port,
                "phys_state",
                if up { "5: LinkUp" } else { "2: Polling" },
            )
        }
        false => {
            write(&interface, "operstate", if up { "up" } else { "down" })?;
            write(&interface, "carrier", if up { "1" } else { "0" })
        }
    };
    match word {
        "down" => up(false),
        "up" => up(true),
        "flap" if is_rdma => add(&port, "counters/link_downed", 1),
        "flap" => add(&interface, "carrier_changes", 2),
        "rate" if is_rdma => write(&port, "rate", &format!("{value} Gb/sec (4X)")),
        "errors" if is_rdma => add(&port, "counters/port_rcv_errors", number(word, value)?),
        "counter" if is_rdma => {
            let (counter, more) = value
                .split_once(':')
                .with_context(|| format!("counter={value}: not NAME:N"))?;
            let places = ["counters", "hw_counters"].map(|folder| format!("{folder}/{counter}"));
            let file = places
                .iter()
                .find(|file| port.join(file).is_file())
                .with_context(|| format!("no counter {counter:?}"))?;
            add(&port, file, number(word, more)?)
        }
        "unanswered" if is_rdma && device.join("hw_counters").is_dir() => add(
            &device,
            "hw_counters/no_completion_cmds",
            number(word, value)?,
        ),
        "gone" => {
            let class = if is_rdma {
                "sys/class/infiniband"
            } else {
                "sys/class/net"
            };
            fs::remove_file(root.join(class).join(name)).context("take the NIC away")
        }
        _ => bail!("{name}: {word:?} is no fault of a NIC; known are:\n{FAULTS}"),
    }
}

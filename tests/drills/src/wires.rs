//! Nodes joined by real wires: each is in a network namespace, and a virtual cable joins it to a
//! switch in another namespace. The test pulls cables.
//!
//! So each end is a host of its own, as far as the network is concerned. Addresses are from
//! 10.77.0.0/24 or fd77::/64, which exist only in these namespaces. Whatever crosses a pulled cable is lost silently, as with a real cable, and TCP repeats it.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// Which addresses the ends have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
    /// IPv4, with odd and even ends in two networks. The switch routes between them.
    Routed,
}

pub struct Wires {
    prefix: String,
    ends: u32,
    family: Family,
}

impl Wires {
    /// Builds a switch with this many ends, the first of them number 1. `None` if that is not
    /// permitted.
    pub fn lay(ends: u32, family: Family) -> Option<Wires> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Interface names have 15 bytes at most.
        let prefix = format!(
            "mw{}x{}",
            std::process::id() % 1_000_000,
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let wires = Wires {
            prefix,
            ends,
            family,
        };
        let laid = wires.lay_all();
        if !laid {
            eprintln!(
                "\n!!! NO NETWORK NAMESPACES with virtual cables here (they need root and `ip`): cuts between ranks are NOT SHOWN.\n"
            );
        }
        laid.then_some(wires)
    }

    fn lay_all(&self) -> bool {
        let switch = self.name(0);
        let made = ip(&["netns", "add", &switch])
            && ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])
            && ip(&["-n", &switch, "link", "set", "br0", "up"])
            && (self.family != Family::Routed || self.route(&switch));
        made && (1..=self.ends).all(|end| self.lay_one(end))
    }

    fn lay_one(&self, end: u32) -> bool {
        let (switch, name, cable) = (self.name(0), self.name(end), self.cable(end));
        ip(&["netns", "add", &name])
            && ip(&["-n", &name, "link", "set", "lo", "up"])
            && ip(&[
                "-n", &switch, "link", "add", &cable, "type", "veth", "peer", "name", "eth0",
                "netns", &name,
            ])
            && ip(&["-n", &switch, "link", "set", &cable, "master", "br0", "up"])
            && ip(&["-n", &name, "link", "set", "eth0", "up"])
            && self.give_address(end)
    }

    fn route(&self, switch: &str) -> bool {
        let router = |network: u32| {
            let address = format!("10.77.{network}.254/24");
            ip(&["-n", switch, "addr", "add", &address, "dev", "br0"])
        };
        // Without the second, ends would be told that they are on one cable.
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward && \
                       for file in /proc/sys/net/ipv4/conf/*/send_redirects; do echo 0 > $file; done";
        let mut set = Command::new("ip");
        set.args(["netns", "exec", switch, "sh", "-c", forward]);
        router(1) && router(2) && run(&mut set)
    }

    fn give_address(&self, end: u32) -> bool {
        let (name, address) = (self.name(end), self.address(end));
        let prefixed = match self.family {
            Family::V4 | Family::Routed => format!("{address}/24"),
            Family::V6 => format!("{address}/64"),
        };
        // Without `nodad` an IPv6 address is of no use for a second.
        let how: &[&str] = match self.family {
            Family::V4 | Family::Routed => &[],
            Family::V6 => &["nodad"],
        };
        let add = ["-n", &name, "addr", "add", &prefixed, "dev", "eth0"];
        let has = ip(&[&add[..], how].concat());
        let router = format!("10.77.{}.254", network_of(end));
        let default = ["-n", &name, "route", "add", "default", "via", &router];
        has && (self.family != Family::Routed || ip(&default))
    }

    fn name(&self, end: u32) -> String {
        format!("{}n{end}", self.prefix)
    }

    fn cable(&self, end: u32) -> String {
        format!("{}c{end}", self.prefix)
    }

    pub fn address(&self, end: u32) -> String {
        match self.family {
            Family::V4 => format!("10.77.0.{end}"),
            Family::V6 => format!("fd77::{end}"),
            Family::Routed => format!("10.77.{}.{end}", network_of(end)),
        }
    }

    /// The address at which a program listens to be reached at all of an end's addresses.
    pub fn anywhere(&self) -> &'static str {
        match self.family {
            Family::V4 | Family::Routed => "0.0.0.0",
            Family::V6 => "[::]",
        }
    }

    /// A command that runs `program` at this end.
    pub fn command(&self, end: u32, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.name(end)))
            .arg(program);
        command
    }

    /// Pulls the cable of one end, or puts it back.
    pub fn set(&self, end: u32, plugged: bool) {
        let state = if plugged { "up" } else { "down" };
        assert!(ip(&[
            "-n",
            &self.name(0),
            "link",
            "set",
            &self.cable(end),
            state
        ]));
    }

    /// From now on this share of the packets from and to an end is lost, by chance. No kernel module
    /// for that is needed: a filter that asks the kernel for a random number drops them.
    pub fn lose(&self, end: u32, percent: u32) {
        let threshold = u64::from(percent) * (1 << 32) / 100;
        // BPF: A = random; if A >= threshold, let it pass (0), else drop it (2).
        let code = format!("4,32 0 0 4294963256,53 0 1 {threshold},6 0 0 0,6 0 0 2");
        let (cable, own) = (self.cable(end), "eth0".to_owned());
        for (space, device) in [(self.name(0), cable), (self.name(end), own)] {
            let tc = |args: &[&str]| run(Command::new("tc").args(["-n", &space]).args(args));
            let filter = [
                "filter", "add", "dev", &device, "ingress", "protocol", "all",
            ];
            let bpf = ["bpf", "bytecode", &code, "direct-action"];
            assert!(tc(&["qdisc", "add", "dev", &device, "ingress"]));
            assert!(tc(&[&filter[..], &bpf].concat()));
        }
    }

    /// The end loses its address and gets another one, as from a DHCP server that has forgotten it.
    /// Returns the new one. For [`Family::V4`].
    pub fn move_to_another_address(&self, end: u32) -> String {
        let (name, address) = (self.name(end), format!("10.77.0.{}", 100 + end));
        let new = format!("{address}/24");
        assert!(
            ip(&["-n", &name, "addr", "flush", "dev", "eth0"])
                && ip(&["-n", &name, "addr", "add", &new, "dev", "eth0"])
        );
        address
    }

    /// Isolated ends reach those that are not isolated, but not each other.
    pub fn isolate(&self, end: u32, isolated: bool) {
        let state = if isolated { "on" } else { "off" };
        let kind = ["type", "bridge_slave", "isolated", state];
        assert!(ip(&[
            &["-n", &self.name(0), "link", "set", &self.cable(end)],
            kind.as_slice()
        ]
        .concat()));
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        for end in 0..=self.ends {
            ip(&["netns", "del", &self.name(end)]);
        }
    }
}

/// The network of an end, where there are two.
fn network_of(end: u32) -> u32 {
    1 + end % 2
}

fn ip(args: &[&str]) -> bool {
    run(Command::new("ip").args(args))
}

fn run(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

//! A network namespace per node, if the machine permits it. A process inside reaches others only
//! through a relay of the test.

use std::{
    fs::File,
    net::TcpListener,
    os::fd::AsFd,
    process::{Command, Stdio},
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// One namespace with a loopback interface of its own. It is removed when this is dropped.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// `None`, with a clear message, if none can be made: the user is not root, or `ip` is missing.
    pub fn make() -> Option<Namespace> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        static LOUD: Once = Once::new();
        let name = format!(
            "muster-drill-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let made = ip(&["netns", "add", &name]) && ip(&["-n", &name, "link", "set", "lo", "up"]);
        if !made {
            LOUD.call_once(|| {
                eprintln!(
                    "\n!!! NO NETWORK NAMESPACES here (they need root and `ip`): the nodes of this drill share one loopback. Cuts \
                     are the relay's all the same; that an agent has no way around the relay is not shown.\n"
                );
            });
            return None;
        }
        Some(Namespace { name })
    }

    /// A command that runs `program` inside.
    pub fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.name))
            .arg(program);
        command
    }

    /// A port on the loopback inside. A socket stays in the namespace where it was made, whatever
    /// process holds it.
    pub fn listen(&self) -> TcpListener {
        let path = format!("/run/netns/{}", self.name);
        // This needs a thread of its own, because the move concerns the calling thread, and the way
        // back needs the name of the old namespace.
        let listening = thread::spawn(move || {
            let namespace = File::open(path).expect("it was made above");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may enter it");
            TcpListener::bind("127.0.0.1:0").expect("a new loopback has free ports")
        });
        listening.join().expect("it does not panic")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.name]);
    }
}

fn ip(args: &[&str]) -> bool {
    let quiet = Command::new("ip")
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    quiet.is_ok_and(|status| status.success())
}

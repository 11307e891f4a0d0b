//! Asks the kubelet which pods hold which devices, over its socket for that (PodResources, version 1).
//!
//! It is asked every few seconds, over a connection of its own each time, because a kubelet that was
//! restarted listens on another socket. What it said last is true for as long as it is away: without
//! it no pod gets a device.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    thread,
    time::Duration,
};

use muster_core::node_report::devices::Given;
use muster_proto::kubelet::{
    ContainerResources, ListPodResourcesRequest, PodResources,
    pod_resources_lister_client::PodResourcesListerClient,
};
use muster_rpc::unix;
use muster_runtime::chain::chain;
use tonic::{Code, Status};
use tracing::warn;

use super::sense::Sense;

/// How long an answer may take. A kubelet answers within milliseconds, from memory.
const ANSWER: Duration = Duration::from_secs(3);
/// Bytes of the largest answer, as in Kubernetes' own client. It names all pods, and the devices of each.
const ANSWER_MAX: usize = 16 << 20;
/// More devices are not read. Shared GPUs have tens of names each, and a machine has at most 16.
const DEVICES_MAX: usize = 8_192;

#[derive(Debug)]
pub(super) struct Watch {
    pub(super) socket: PathBuf,
    pub(super) every: Duration,
    pub(super) out: SyncSender<Sense>,
    /// Set when nobody listens any more.
    pub(super) over: Arc<AtomicBool>,
}

pub(super) fn start(watch: Watch) {
    if let Err(e) = thread::Builder::new()
        .name("kubelet".into())
        .spawn(move || watch.run())
    {
        warn!("the kubelet is not asked who holds GPUs: no thread: {e}");
    }
}

impl Watch {
    fn run(self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(e) => return warn!("the kubelet is not asked who holds GPUs: {e}"),
        };
        while !self.over.load(Ordering::Relaxed) {
            let answer = runtime.block_on(ask(&self.socket));
            if self.out.send(Sense::Kubelet(answer)).is_err() {
                return;
            }
            thread::sleep(self.every);
        }
    }
}

/// All devices that the kubelet has given away. The error tells a person what to do.
async fn ask(socket: &Path) -> Result<Vec<Given>, String> {
    let at = socket.display();
    let channel = unix::dial(socket, ANSWER).await.map_err(|e| {
        format!(
            "the kubelet's socket {at} cannot be called ({}): the kubelet must run, its directory pod-resources must be \
             mounted, and the agent must run as the socket's owner, which is root",
            chain(&e)
        )
    })?;
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(ANSWER_MAX);
    let asked = client.list(ListPodResourcesRequest {});
    let answer = match tokio::time::timeout(ANSWER, asked).await {
        Ok(Ok(answer)) => answer.into_inner(),
        Ok(Err(status)) => return Err(refused(socket, &status)),
        Err(_) => return Err(format!("the kubelet at {at} has not answered within 3 s")),
    };
    Ok(answer
        .pod_resources
        .into_iter()
        .flat_map(given)
        .take(DEVICES_MAX)
        .collect())
}

fn refused(socket: &Path, status: &Status) -> String {
    let at = socket.display();
    match status.code() {
        Code::Unimplemented => format!(
            "what listens at {at} does not serve version 1 of the kubelet's PodResources API: Kubernetes must be 1.20 or later, and \
             --pod-resources must name kubelet.sock in the kubelet's directory pod-resources"
        ),
        _ => format!(
            "the kubelet at {at} does not say which pods hold GPUs: {}",
            status.message()
        ),
    }
}

fn given(pod: PodResources) -> impl Iterator<Item = Given> {
    let PodResources {
        name,
        namespace,
        containers,
    } = pod;
    containers
        .into_iter()
        .flat_map(devices)
        .map(move |(by, device)| Given {
            namespace: namespace.clone(),
            pod: name.clone(),
            by,
            device,
        })
}

/// Who has given the devices of a container, and their names.
fn devices(container: ContainerResources) -> impl Iterator<Item = (String, String)> {
    let plugins = container.devices.into_iter().flat_map(|devices| {
        let by = devices.resource_name;
        let ids = devices.device_ids.into_iter();
        ids.map(move |id| (by.clone(), id))
    });
    let claims = container.dynamic_resources.into_iter();
    let drivers = claims
        .flat_map(|claim| claim.claim_resources)
        .map(|resource| (resource.driver_name, resource.device_name));
    plugins.chain(drivers)
}

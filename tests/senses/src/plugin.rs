//! A device plugin for GPUs that are not there: it offers the GPUs of a fake machine to the node's
//! kubelet as `nvidia.com/gpu`, under their UUIDs, so that pods with such limits are scheduled, and
//! the kubelet says which pod holds which GPU.
//!
//! It gives a pod no device file, and calls every GPU healthy for ever: that a GPU is sick is for the
//! agent to find, without the help of the scheduler.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use muster_rpc::unix;
use tokio::{net::UnixListener, time::interval};
use tokio_stream::{Stream, StreamExt, wrappers::UnixListenerStream};
use tonic::{Request, Response, Status, transport::Server};

use api::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions,
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
    device_plugin_server::{DevicePlugin, DevicePluginServer},
    registration_client::RegistrationClient,
};

/// The kubelet's API for device plugins.
pub mod api {
    #![allow(unreachable_pub)]
    tonic::include_proto!("v1beta1");
}

pub const RESOURCE: &str = "nvidia.com/gpu";
/// The kubelet's socket, and ours, in one directory.
pub const KUBELET: &str = "kubelet.sock";
pub const ENDPOINT: &str = "muster-fake-gpus.sock";
const VERSION: &str = "v1beta1";
/// How long the kubelet may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often to look whether the kubelet has started anew. It then removes all sockets but its own.
const LOOK: Duration = Duration::from_millis(500);

type Answer<T> = Result<Response<T>, Status>;

#[derive(Clone, Debug)]
struct Gpus(Vec<String>);

#[tonic::async_trait]
impl DevicePlugin for Gpus {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Answer<DevicePluginOptions> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Answer<Self::ListAndWatchStream> {
        let device = |uuid: &String| Device {
            id: uuid.clone(),
            health: "Healthy".to_owned(),
        };
        let devices = self.0.iter().map(device).collect();
        // Nothing ever changes, and the stream stays open.
        let once = tokio_stream::once(Ok(ListAndWatchResponse { devices }));
        Ok(Response::new(Box::pin(once.chain(tokio_stream::pending()))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Answer<PreferredAllocationResponse> {
        Err(Status::unimplemented("the options say so"))
    }

    async fn allocate(&self, asked: Request<AllocateRequest>) -> Answer<AllocateResponse> {
        let of_container = |uuids: Vec<String>| match uuids.iter().find(|id| !self.0.contains(id)) {
            Some(unknown) => Err(Status::not_found(format!("no GPU is called {unknown}"))),
            None => Ok(ContainerAllocateResponse {
                envs: BTreeMap::from([("NVIDIA_VISIBLE_DEVICES".to_owned(), uuids.join(","))]),
            }),
        };
        let asked = asked.into_inner().container_requests.into_iter();
        let containers = asked.map(|container| of_container(container.devices_ids));
        Ok(Response::new(AllocateResponse {
            container_responses: containers.collect::<Result<_, _>>()?,
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Answer<PreStartContainerResponse> {
        Err(Status::unimplemented("the options say so"))
    }
}

/// The UUIDs of a machine that `muster-hardware make` has made.
pub fn gpus_of(machine: &Path) -> Result<Vec<String>> {
    let hardware = muster_fake_nvml::machine::read(machine)?;
    let uuids: Vec<String> = hardware.gpus.into_iter().map(|gpu| gpu.uuid).collect();
    if uuids.is_empty() {
        bail!("the machine in {} has no GPU", machine.display());
    }
    Ok(uuids)
}

/// Offers these GPUs to the kubelet whose socket is in this directory, also after it has started
/// anew. Ends only with an error.
pub async fn offer(gpus: Vec<String>, dir: &Path) -> Result<()> {
    loop {
        let socket = dir.join(ENDPOINT);
        remove(&socket)?;
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("listen at {}", socket.display()))?;
        let service = DevicePluginServer::new(Gpus(gpus.clone()));
        let incoming = UnixListenerStream::new(listener);
        let server = Server::builder().add_service(service);
        tokio::select! {
            served = server.serve_with_incoming(incoming) => {
                served.with_context(|| format!("serve at {}", socket.display()))?;
                bail!("the server at {} has ended", socket.display());
            }
            over = until_anew(dir.to_owned(), gpus.len()) => over?,
        }
        eprintln!("the kubelet has started anew");
    }
}

/// Registers, and returns once the kubelet has removed our socket.
async fn until_anew(dir: PathBuf, count: usize) -> Result<()> {
    register(&dir).await?;
    eprintln!("the kubelet has {count} GPUs");
    let socket = dir.join(ENDPOINT);
    let mut look = interval(LOOK);
    while socket.exists() {
        look.tick().await;
    }
    Ok(())
}

/// Until it is heard. A kubelet that starts removes sockets a moment before it listens.
async fn register(dir: &Path) -> Result<()> {
    let (kubelet, own) = (dir.join(KUBELET), dir.join(ENDPOINT));
    let mut again = interval(LOOK);
    loop {
        again.tick().await;
        match ask(&kubelet).await {
            Ok(()) => return Ok(()),
            Err(e) if own.exists() => eprintln!("{}: {e:#}", kubelet.display()),
            // The next round makes another one.
            Err(_) => return Ok(()),
        }
    }
}

async fn ask(kubelet: &Path) -> Result<()> {
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: ENDPOINT.to_owned(),
        resource_name: RESOURCE.to_owned(),
        options: Some(DevicePluginOptions::default()),
    };
    let channel = unix::dial(kubelet, ANSWER).await.context("dial")?;
    let mut client = RegistrationClient::new(channel);
    client.register(request).await.context("register")?;
    Ok(())
}

fn remove(socket: &Path) -> Result<()> {
    match fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("remove {}", socket.display()))
        }
        _ => Ok(()),
    }
}

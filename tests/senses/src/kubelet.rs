//! A kubelet that is none: it serves the PodResources API over a real Unix socket, and says what it is
//! told to say. Device plugins can register with it. It knows no pods and starts nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use muster_proto::kubelet::{
    ClaimResource, ContainerDevices, ContainerResources, DynamicResource, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
    pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
};
use tokio::{net::UnixListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Server},
};

use crate::plugin::{
    self,
    api::{
        Empty, RegisterRequest,
        device_plugin_client::DevicePluginClient,
        registration_server::{Registration, RegistrationServer},
    },
};

/// A kubelet that runs for as long as it is held.
#[derive(Debug)]
pub struct Kubelet {
    socket: PathBuf,
    said: Said,
    served: Option<JoinHandle<()>>,
}

#[derive(Clone, Debug, Default)]
struct Said(Arc<Mutex<Answer>>);

#[derive(Clone, Debug)]
enum Answer {
    Pods(Vec<PodResources>),
    /// It is too old to serve this version.
    Old,
}

impl Default for Answer {
    fn default() -> Self {
        Self::Pods(Vec::new())
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Said {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        match self.get() {
            Answer::Pods(pod_resources) => {
                Ok(Response::new(ListPodResourcesResponse { pod_resources }))
            }
            Answer::Old => Err(Status::unimplemented(
                "unknown service v1.PodResourcesLister",
            )),
        }
    }
}

impl Said {
    fn get(&self) -> Answer {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, answer: Answer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }
}

impl Kubelet {
    /// One that does not run yet. Its socket will be in this directory.
    pub fn in_dir(dir: &Path) -> Self {
        Self {
            socket: dir.join("kubelet.sock"),
            said: Said::default(),
            served: None,
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Starts it. Needs a runtime.
    pub fn start(&mut self) {
        self.stop();
        let listener = UnixListener::bind(&self.socket).expect("the directory is ours");
        let service = PodResourcesListerServer::new(self.said.clone());
        self.served = Some(tokio::spawn(async move {
            let incoming = UnixListenerStream::new(listener);
            let server = Server::builder().add_service(service);
            let served = server.serve_with_incoming(incoming).await;
            served.expect("the socket stays");
        }));
    }

    /// Stops it. A real one removes its socket when it starts again.
    pub fn stop(&mut self) {
        if let Some(served) = self.served.take() {
            served.abort();
        }
        let _ = fs::remove_file(&self.socket);
    }

    /// From now on it serves no API of this version.
    pub fn is_old(&self) {
        self.said.set(Answer::Old);
    }

    /// From now on it says that these pods hold these devices, each as `NAMESPACE/POD`, the resource, and
    /// the names of the devices.
    pub fn says(&self, pods: &[(&str, &str, &[&str])]) {
        let pods = pods.iter().map(|(pod, resource, ids)| {
            let devices = ContainerDevices {
                resource_name: (*resource).to_owned(),
                device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            };
            of(pod, vec![devices], Vec::new())
        });
        self.said.set(Answer::Pods(pods.collect()));
    }

    /// From now on it says that this pod has claimed this device of a driver.
    pub fn says_claimed(&self, pod: &str, driver: &str, device: &str) {
        let resource = ClaimResource {
            driver_name: driver.to_owned(),
            device_name: device.to_owned(),
        };
        let claim = DynamicResource {
            claim_resources: vec![resource],
        };
        self.said
            .set(Answer::Pods(vec![of(pod, Vec::new(), vec![claim])]));
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop();
    }
}

fn of(
    pod: &str,
    devices: Vec<ContainerDevices>,
    dynamic_resources: Vec<DynamicResource>,
) -> PodResources {
    let (namespace, name) = pod.split_once('/').expect("NAMESPACE/POD");
    PodResources {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        containers: vec![ContainerResources {
            name: "train".to_owned(),
            devices,
            dynamic_resources,
        }],
    }
}

/// The other half of a kubelet: device plugins register with it. It keeps what they say.
#[derive(Debug)]
pub struct Registrar {
    dir: PathBuf,
    heard: mpsc::Receiver<RegisterRequest>,
    served: JoinHandle<()>,
}

struct Register(mpsc::Sender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Register {
    async fn register(&self, asked: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let heard = self.0.send(asked.into_inner()).await;
        heard.map_err(|_| Status::unavailable("nobody asks any more"))?;
        Ok(Response::new(Empty {}))
    }
}

impl Registrar {
    /// Starts with its socket in this directory, from which it removes all others, as a kubelet does.
    pub fn start(dir: &Path) -> Self {
        for entry in fs::read_dir(dir).expect("the directory is ours").flatten() {
            fs::remove_file(entry.path()).expect("there are sockets alone");
        }
        let listener =
            UnixListener::bind(dir.join(plugin::KUBELET)).expect("the directory is ours");
        // A test has one plugin, which waits for the answer.
        let (heard_in, heard) = mpsc::channel(1);
        let server = Server::builder().add_service(RegistrationServer::new(Register(heard_in)));
        let served = tokio::spawn(async move {
            let incoming = UnixListenerStream::new(listener);
            let served = server.serve_with_incoming(incoming).await;
            served.expect("the socket stays");
        });
        Self {
            dir: dir.to_owned(),
            heard,
            served,
        }
    }

    /// The next plugin that registers, and a client to it.
    pub async fn registered(&mut self) -> (RegisterRequest, DevicePluginClient<Channel>) {
        let said = self.heard.recv();
        let said = tokio::time::timeout(crate::PATIENCE, said).await;
        let said = said
            .expect("a plugin registers")
            .expect("the server goes on");
        let socket = self.dir.join(&said.endpoint);
        let channel = muster_rpc::unix::dial(&socket, crate::PATIENCE)
            .await
            .expect("the plugin listens before it registers");
        (said, DevicePluginClient::new(channel))
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.served.abort();
    }
}

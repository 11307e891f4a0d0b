//! What the coordinator says of its own API to a program without .proto files.

use muster_rpc::Channel;
use prost::Message;
use prost_types::FileDescriptorProto;
use tokio_stream::{StreamExt, iter};
use tonic::{Code, Status};
use tonic_reflection::pb::{v1, v1alpha};

use crate::server::{Server, within};

/// Asks for a list of the services and for the file of each symbol. Both versions of the protocol
/// are alike.
macro_rules! ask {
    ($version:ident, $channel:expr, $symbols:expr) => {{
        use $version::{
            ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
            server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
        };
        let symbols = $symbols.iter().map(|name| (*name).to_owned());
        let list = [MessageRequest::ListServices(String::new())];
        let all = list
            .into_iter()
            .chain(symbols.map(MessageRequest::FileContainingSymbol))
            .map(|what| ServerReflectionRequest {
                host: String::new(),
                message_request: Some(what),
            });
        let requests: Vec<_> = all.collect();
        let mut client = ServerReflectionClient::new($channel);
        let asked = client.server_reflection_info(iter(requests));
        let mut answers = within(asked).await?.into_inner();
        let (mut services, mut files) = (Vec::new(), Vec::new());
        while let Some(answer) = within(answers.next()).await {
            match answer?.message_response.unwrap() {
                MessageResponse::ListServicesResponse(list) => {
                    services.extend(list.service.into_iter().map(|service| service.name));
                }
                MessageResponse::FileDescriptorResponse(file) => {
                    let [file] = &file.file_descriptor_proto[..] else {
                        panic!("one file has it");
                    };
                    files.push(FileDescriptorProto::decode(&file[..]).unwrap());
                }
                other => panic!("an answer to another question: {other:?}"),
            }
        }
        Ok((services, files))
    }};
}

type Answer = Result<(Vec<String>, Vec<FileDescriptorProto>), Status>;

async fn ask(channel: Channel, symbols: &[&str]) -> Answer {
    ask!(v1, channel, symbols)
}

async fn ask_as_before(channel: Channel, symbols: &[&str]) -> Answer {
    ask!(v1alpha, channel, symbols)
}

#[tokio::test]
async fn a_program_without_proto_files_learns_the_api() {
    let server = Server::start().await;
    let symbols = [
        "muster.v1.JobService.Submit",
        "muster.v1.Incident",
        "grpc.health.v1.Health",
    ];
    let channel = || server.clients.channel();
    for (version, answer) in [
        ("v1", ask(channel(), &symbols).await),
        ("v1alpha", ask_as_before(channel(), &symbols).await),
    ] {
        let (mut services, files) = answer.unwrap();
        services.sort();
        let own = format!("grpc.reflection.{version}.ServerReflection");
        assert_eq!(
            services,
            [
                "grpc.health.v1.Health",
                &own,
                "muster.v1.AccessService",
                "muster.v1.AgentService",
                "muster.v1.AuditService",
                "muster.v1.EventService",
                "muster.v1.HistoryService",
                "muster.v1.JobService",
                "muster.v1.NodeService",
                "muster.v1.NotificationService",
                "muster.v1.QueueService",
            ]
        );
        let names: Vec<&str> = files.iter().map(FileDescriptorProto::name).collect();
        assert_eq!(names[..2], ["muster/v1/jobs.proto"; 2]);
        let job = files[0].message_type.iter().find(|m| m.name() == "Job");
        assert_eq!(job.unwrap().field[0].type_name(), ".muster.v1.JobRef");
        let comments = &files[0].source_code_info.as_ref().unwrap().location;
        let is_told = |text: &str| {
            comments
                .iter()
                .any(|place| place.leading_comments().contains(text))
        };
        assert!(is_told("Accepts a job."), "with what it means");
    }
    let unknown = ask(channel(), &["muster.v1.Nothing"]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

//! Logs byte for byte, also beside an agent that knows only text.

use muster_proto::v1::{self, agent_message::Message as FromAgent};

use crate::{
    agent::{RawSession, hello, say},
    server::{Server, reference, spec, within},
};

#[tokio::test]
async fn bytes_come_as_they_are_and_text_of_an_older_agent_as_its_bytes() {
    let server = Server::start().await;
    let mut agent = RawSession::open(&server, say(FromAgent::Hello(hello("node-a"))))
        .await
        .unwrap();
    server.submit("one", spec(1)).await;
    server
        .until_job("one", |job| job.status.as_ref().unwrap().generation == 1)
        .await;
    let raw = v1::LogsRequest {
        follow: true,
        raw: true,
        r#ref: Some(reference("one")),
        ..v1::LogsRequest::default()
    };
    let mut stream = server.jobs().logs(raw).await.unwrap().into_inner();
    let read = agent.log_read().await;
    assert!(read.raw);
    let awkward = vec![
        b"T stdout P \xff\0\r".to_vec(),
        b"T stdout F:E \xc3".to_vec(),
    ];
    for (lines, raw, at) in [
        (Vec::new(), awkward.clone(), 10),
        (vec!["T stdout F caf\u{e9}".to_owned()], Vec::new(), 20),
        (vec!["T stdout F more".to_owned()], Vec::new(), 30),
    ] {
        let chunk = v1::LogChunk {
            id: read.id,
            lines,
            raw,
            at,
            ..v1::LogChunk::default()
        };
        agent.up.send(say(FromAgent::Log(chunk))).await.unwrap();
    }
    let mut got = Vec::new();
    while got.len() < 3 {
        let response = within(stream.message()).await.unwrap().unwrap();
        if !response.raw.is_empty() {
            assert!(response.lines.is_empty());
            got.push((response.raw, response.notice));
        }
    }
    assert_eq!(got[0], (awkward, String::new()));
    assert_eq!(got[1].0, ["T stdout F caf\u{e9}".as_bytes()]);
    assert!(
        got[1]
            .1
            .contains("the agent on node-a is older and sends text only"),
        "{}",
        got[1].1
    );
    assert_eq!(got[2].1, "", "it is said once");
}

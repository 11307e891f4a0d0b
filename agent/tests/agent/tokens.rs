//! An agent that shows its pod's token, to a coordinator that it knows by an authority in a file.

use std::{fs, time::Duration};

use muster_rpc::{
    gate::{Admitted, Asked, Gate, Refused},
    listen::{Caller, Options},
    tls::{Pair, ServerTls},
    uri_names::UriNames,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::{sync::mpsc, time::timeout};
use tonic::Status;

use crate::rig::{Coordinator, Node, PATIENCE};

const NAME: &str = "muster-coordinator.muster-system";

/// Says which tokens are shown, and refuses one.
#[derive(Clone)]
struct Shown(mpsc::Sender<Option<String>>);

impl Gate for Shown {
    type Call = ();

    async fn admit(&self, asked: Asked) -> Result<Admitted<()>, Refused> {
        let token = asked.bearer.map(|bearer| bearer.secret().to_owned());
        self.0.send(token.clone()).await.unwrap();
        if token.as_deref() == Some("old") {
            return Err(Refused {
                caller: asked.caller,
                status: Status::unauthenticated("the token has expired; get a new one"),
            });
        }
        Ok(Admitted {
            call: (),
            caller: asked.caller,
            extensions: tonic::codegen::http::Extensions::new(),
        })
    }

    fn refused(&self, _: &Caller, _: &str, _: &Status) {}
}

/// An authority, and a server's certificate of it for [`NAME`].
fn authority() -> (String, Pair) {
    let (key, server) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let leaf = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let chain = leaf.signed_by(&server, &issuer).unwrap().pem();
    let own = Pair {
        chain,
        key: server.serialize_pem(),
    };
    (certificate, own)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_and_the_authority_are_read_at_every_dial() {
    let (authorities, own) = authority();
    let options = Options {
        tls: Some(ServerTls::new(UriNames::default(), &own, None).unwrap()),
        ..Options::default()
    };
    let (say, mut shown) = mpsc::channel(64);
    let any = "127.0.0.1:0".parse().unwrap();
    let mut coordinator = Coordinator::serve(any, options.clone(), Shown(say.clone()));
    let mut node = Node::new("n1");
    let (token, ca) = (node.path("token"), node.path("ca.pem"));
    fs::write(&token, "old\n").unwrap();
    // The authority of another cluster.
    fs::write(&ca, authority().0).unwrap();
    let flags = |name: &str| {
        let files = [("--token-file", &token), ("--ca-file", &ca)];
        let files = files.map(|(flag, path)| [flag.to_owned(), path.display().to_string()]);
        [files.concat(), vec!["--server-name".into(), name.into()]].concat()
    };
    node.flags = flags(NAME);
    let url = coordinator.url().replace("http://", "https://");
    node.start(&url);
    until_log(&node, "is not of the authority that is trusted here").await;
    assert!(shown.try_recv().is_err(), "a stranger is shown no token");
    fs::write(&ca, &authorities).unwrap();
    assert_eq!(shown.recv().await.unwrap().as_deref(), Some("old"));
    until_log(&node, "the token has expired; get a new one").await;
    fs::write(&token, "new").unwrap();
    let session = coordinator.welcome(1, 1).await;
    assert_eq!(session.hello.node, "n1");
    while shown.recv().await.unwrap().as_deref() != Some("new") {}
    drop(session);

    // Without a token nothing is sent. When it is there again, the agent comes back.
    fs::write(&token, "").unwrap();
    let addr = coordinator.stop();
    until_log(&node, "token: there is no token in it").await;
    let mut coordinator = Coordinator::serve(addr, options, Shown(say));
    fs::write(&token, "newer").unwrap();
    coordinator.welcome(1, 2).await;
    while shown.recv().await.unwrap().as_deref() != Some("newer") {}
    node.kill_agent();

    // The certificate is not for the address, so the name matters.
    node.flags = flags("another-name");
    node.start(&url);
    until_log(&node, "its certificate is not for this name or address").await;
    let log = node.log();
    assert!(!log.contains("newer"), "{log}");
}

async fn until_log(node: &Node, text: &str) {
    let mut look = tokio::time::interval(Duration::from_millis(20));
    let found = timeout(PATIENCE, async {
        while !node.log().contains(text) {
            look.tick().await;
        }
    });
    let found = found.await;
    assert!(found.is_ok(), "no {text:?} in {}", node.log());
}

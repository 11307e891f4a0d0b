//! The operator's file (`--notify FILE`): receivers, rules that say who gets what, and what jobs may ask for. `docs/notifications.md` describes
//! it.

mod mailbox;
mod open;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_core::{
    fleet::notify::{Kind, RECEIVERS_MAX, Rule, Rules},
    id::label_error,
    period,
};
use rustls::ClientConfig;
use serde_json::Value;

use super::{
    dial,
    fields::{Fields, Wrong},
    receiver::{Address, Endpoint, Form, Receiver, Secret, To},
};

/// A month: who waits for longer is told by nobody else either.
const WAITING_MAX: Duration = Duration::from_secs(31 * 24 * 3600);

/// Longer, and people look first.
const GATHER_MAX: Duration = Duration::from_secs(3600);

/// The field of a receiver of mail.
pub(super) const MAIL: &str = "mail";

/// What the file says.
#[derive(Clone, Debug)]
pub struct Notify {
    pub rules: Rules,
    /// The name of this cluster in messages. Empty: none is said.
    pub(crate) cluster: String,
    pub(crate) receivers: BTreeMap<String, Receiver>,
}

/// Reads and checks the file. The error has a line for each thing that is wrong.
pub fn read(path: &Path) -> Result<Notify, String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|e| format!("--notify: read {shown}: {e}"))?;
    parse(&text).map_err(|wrong| {
        let lines: Vec<String> = wrong.iter().map(|one| format!("\n  {one}")).collect();
        format!("--notify: {shown} is wrong:{}", lines.concat())
    })
}

fn parse(text: &str) -> Result<Notify, Vec<String>> {
    let document: Value = serde_saphyr::from_str(text).map_err(|e| vec![e.to_string()])?;
    let mut wrong = Wrong::default();
    let notify = Fields::of("", &document, &mut wrong).map(|fields| whole(fields, &mut wrong));
    match notify {
        Some(notify) if wrong.0.is_empty() => Ok(notify),
        _ => Err(wrong.0),
    }
}

fn whole(mut fields: Fields<'_>, wrong: &mut Wrong) -> Notify {
    let mut trusted = Trusted::default();
    let mut receivers = BTreeMap::new();
    let own = fields.list("receivers", wrong);
    if own.is_empty() {
        wrong.note("receivers", "name at least one receiver");
    }
    if own.len() > RECEIVERS_MAX {
        wrong.note("receivers", format!("at most {RECEIVERS_MAX} are allowed"));
    }
    for (path, value) in own {
        let Some(receiver) = receiver(&path, value, &mut trusted, wrong) else {
            continue;
        };
        let name = receiver.name.clone();
        if receivers.insert(name.clone(), receiver).is_some() {
            wrong.note(&path, format!("another receiver is called {name}"));
        }
    }
    // A receiver that is wrong is not unknown besides.
    let is_whole = wrong.0.is_empty();
    let names: BTreeSet<String> = receivers.keys().cloned().collect();
    let mut rules = Vec::new();
    for (path, value) in fields.list("rules", wrong) {
        rules.extend(rule(&path, value, is_whole.then_some(&names), wrong));
    }
    let open = fields.get("jobs").map(|value| {
        let known = is_whole.then_some(&receivers);
        open::open(value, known, wrong)
    });
    let default = Rules::default();
    let mut period = |field, default: Duration, most: Duration| {
        let Some(text) = fields.text(field, wrong) else {
            return default;
        };
        match period::parse(text) {
            Ok(period) if period <= most => return period,
            Ok(_) => wrong.note(field, format!("must be at most {}", period::format(most))),
            Err(why) => wrong.note(field, why),
        }
        default
    };
    let waiting = period("waitingTooLong", default.waiting, WAITING_MAX);
    let gathers = period("gatherFor", default.gathers, GATHER_MAX);
    let rules = Rules {
        receivers: names,
        rules,
        waiting,
        gathers,
        shows_errors: fields
            .flag("showErrors", wrong)
            .unwrap_or(default.shows_errors),
        open: open.unwrap_or_default(),
    };
    let cluster = fields.text("cluster", wrong).unwrap_or_default();
    if cluster.chars().count() > 64 || cluster.chars().any(char::is_control) {
        wrong.note("cluster", "must be a name of at most 64 characters");
    }
    fields.end(wrong);
    Notify {
        rules,
        cluster: cluster.to_owned(),
        receivers,
    }
}

fn receiver(
    path: &str,
    value: &Value,
    trusted: &mut Trusted,
    wrong: &mut Wrong,
) -> Option<Receiver> {
    let mut fields = Fields::of(path, value, wrong)?;
    let name = fields.text("name", wrong).unwrap_or_default().to_owned();
    if let Some(why) = label_error(&name) {
        wrong.note(&fields.path("name"), why);
    }
    let words = Form::ALL.map(Form::word).into_iter().chain([MAIL]);
    let given: Vec<(&str, &Value)> = words
        .filter_map(|word| Some((word, fields.get(word)?)))
        .collect();
    fields.end(wrong);
    let [(word, value)] = given[..] else {
        wrong.note(path, "needs one of webhook, slack, alertmanager and mail");
        return None;
    };
    let mut fields = Fields::of(&format!("{path}.{word}"), value, wrong)?;
    let form = Form::ALL.into_iter().find(|form| form.word() == word);
    let to = match form {
        Some(form) => endpoint(form, &mut fields, wrong).map(To::Http),
        None => mailbox::mailbox(&mut fields, wrong).map(To::Mail),
    };
    let file = fields.text("caFile", wrong).map(PathBuf::from);
    let tls = trusted.of(file).map_err(|why| {
        wrong.note(&fields.path("caFile"), why);
    });
    fields.end(wrong);
    Some(Receiver {
        name,
        to: to?,
        tls: tls.ok()?,
    })
}

fn endpoint(form: Form, fields: &mut Fields<'_>, wrong: &mut Wrong) -> Option<Endpoint> {
    let url = secret(fields, ["url", "urlFile", "urlEnv"], wrong);
    if url.is_none() {
        let what = "name the address by one of url, urlFile and urlEnv";
        wrong.note(&fields.path("url"), what);
    }
    if form == Form::Slack && matches!(url, Some(Secret::Plain(_))) {
        let what = "whoever knows this address can write there, so keep it out of this file: use urlFile or urlEnv";
        wrong.note(&fields.path("url"), what);
    }
    let parsed = url
        .as_ref()
        .map(|url| url.read().and_then(|url| Address::parse(&url)));
    if let Some(Err(why)) = parsed {
        wrong.note(&fields.path("url"), why);
    }
    let token = secret(fields, ["", "tokenFile", "tokenEnv"], wrong);
    let key = match form {
        Form::Webhook => secret(fields, ["", "keyFile", "keyEnv"], wrong),
        Form::Slack | Form::Alertmanager => None,
    };
    for (field, secret) in [("token", &token), ("key", &key)] {
        if let Some(Err(why)) = secret.as_ref().map(Secret::read) {
            wrong.note(&fields.path(field), why);
        }
    }
    Some(Endpoint {
        form,
        url: url?,
        token,
        key,
    })
}

/// A text, or the file or variable in which it is. At most one of the three fields may be there. An empty name: the
/// text itself may not be in the file.
fn secret(
    fields: &mut Fields<'_>,
    [plain, file, variable]: [&'static str; 3],
    wrong: &mut Wrong,
) -> Option<Secret> {
    let mut given = Vec::new();
    if !plain.is_empty() {
        given.extend(fields.text(plain, wrong).map(|it| Secret::Plain(it.into())));
    }
    given.extend(fields.text(file, wrong).map(|it| Secret::File(it.into())));
    given.extend(
        fields
            .text(variable, wrong)
            .map(|it| Secret::Variable(it.into())),
    );
    if given.len() > 1 {
        let names = [plain, file, variable].join(", ");
        let names = names.trim_start_matches(", ");
        wrong.note(&fields.path(file), format!("give only one of {names}"));
    }
    given.pop()
}

fn rule(
    path: &str,
    value: &Value,
    receivers: Option<&BTreeSet<String>>,
    wrong: &mut Wrong,
) -> Option<Rule> {
    let mut fields = Fields::of(path, value, wrong)?;
    let mut on = BTreeSet::new();
    let words = fields.words("on", wrong);
    if words.is_empty() {
        wrong.note(&fields.path("on"), format!("name some of {}", kinds()));
    }
    for (path, word) in words {
        match Kind::read(word) {
            Some(kind) => drop(on.insert(kind)),
            None => wrong.note(&path, format!("{word:?} is not one of {}", kinds())),
        }
    }
    let mut namespaces = BTreeSet::new();
    for (path, name) in fields.words("namespaces", wrong) {
        if let Some(why) = label_error(name) {
            wrong.note(&path, why);
        }
        namespaces.insert(name.to_owned());
    }
    let mut to = BTreeSet::new();
    let names = fields.words("receivers", wrong);
    if names.is_empty() {
        wrong.note(&fields.path("receivers"), "name at least one receiver");
    }
    for (path, name) in names {
        if receivers.is_some_and(|known| !known.contains(name)) {
            wrong.note(&path, format!("there is no receiver {name:?}"));
        }
        to.insert(name.to_owned());
    }
    if !namespaces.is_empty() && on.iter().all(|kind| *kind == Kind::NodeCordoned) && !on.is_empty()
    {
        wrong.note(&fields.path("namespaces"), "nodes are in no namespace");
    }
    fields.end(wrong);
    Some(Rule {
        on,
        namespaces,
        receivers: to,
    })
}

fn kinds() -> String {
    Kind::ALL.map(Kind::word).join(", ")
}

/// The authorities that were read, by their file. `None`: those of the machine.
#[derive(Default)]
struct Trusted(BTreeMap<Option<PathBuf>, Arc<ClientConfig>>);

impl Trusted {
    fn of(&mut self, file: Option<PathBuf>) -> Result<Arc<ClientConfig>, String> {
        if let Some(known) = self.0.get(&file) {
            return Ok(known.clone());
        }
        let read = dial::trusting(file.as_deref())?;
        self.0.insert(file, read.clone());
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("chat");
        fs::write(&secret, "https://chat.example.com/hooks/SECRET\n").unwrap();
        let text = format!(
            "
cluster: prod
receivers:
- name: chat
  slack: {{ urlFile: {} }}
- name: pager
  alertmanager: {{ url: \"http://alerts:9093/\" }}
rules:
- on: [jobFailed, jobStalled]
  namespaces: [team-a]
  receivers: [chat]
- on: [nodeCordoned]
  receivers: [pager, chat]
waitingTooLong: 2h
showErrors: false
gatherFor: 30s
",
            secret.display()
        );
        let notify = parse(&text).unwrap();
        assert_eq!(notify.cluster, "prod");
        assert_eq!(notify.rules.waiting.as_secs(), 7_200);
        assert_eq!(notify.rules.gathers.as_secs(), 30);
        assert!(!notify.rules.shows_errors);
        assert_eq!(notify.rules.rules.len(), 2);
        let chat = &notify.receivers["chat"];
        assert_eq!(chat.shown(), "https://chat.example.com");
        assert!(!format!("{notify:?}").contains("SECRET"));
        let To::Http(pager) = &notify.receivers["pager"].to else {
            panic!("it is no mail");
        };
        assert_eq!(pager.address().unwrap().path, "/api/v2/alerts");
    }

    /// A file with one receiver of mail, and nothing else.
    fn with_mail(fields: &str) -> Result<Notify, Vec<String>> {
        parse(&format!(
            "receivers: [{{ name: ops, mail: {{ {fields} }} }}]"
        ))
    }

    #[test]
    fn a_receiver_of_mail_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("password");
        fs::write(&secret, "hunter2\n").unwrap();
        let fields = format!(
            "server: smtp://mail, from: muster@example.org, to: [ann@example.org], user: muster, passwordFile: {}",
            secret.display()
        );
        let notify = with_mail(&fields).unwrap();
        let ops = &notify.receivers["ops"];
        assert_eq!(
            (ops.form(), ops.shown().as_str()),
            ("mail", "smtp://mail:587 to ann@example.org")
        );
        assert!(!format!("{notify:?}").contains("hunter2"));
        let To::Mail(mailbox) = &ops.to else {
            panic!("it is mail");
        };
        assert_eq!(
            mailbox.start_tls,
            crate::notify::mailbox::StartTls::Required,
            "if nothing is said"
        );
    }

    #[test]
    fn all_that_is_wrong_with_mail_is_said_at_once() {
        let whole = "from: a@x, to: [b@x], server: ";
        for (fields, must) in [
            (
                "port: 25".to_owned(),
                &[
                    "server: name the server",
                    "from: \"\" is no",
                    "to: name at least",
                    "port: is not known",
                ][..],
            ),
            (
                "server: 'smtp://ann:secret@mail', from: a, to: [b@x, b@x, 'c <c@x>']".to_owned(),
                &[
                    "server: has a name",
                    "from: \"a\" is no",
                    "to[1]: b@x stands twice",
                    "to[2]: ",
                ],
            ),
            (
                format!("{whole} smtps://mail, startTls: off, user: ann"),
                &["startTls: smtps:// is TLS", "user: the user needs"],
            ),
            (
                format!("{whole} smtp://mail, startTls: sometimes, passwordFile: /no/such/file"),
                &[
                    "startTls: \"sometimes\" is not one of required, opportunistic, off",
                    "password: read /no",
                    "password: the password needs",
                ],
            ),
            (
                format!("{whole} smtp://mail, startTls: off, user: ann, passwordEnv: PATH"),
                &["password: a password is not sent without TLS"],
            ),
        ] {
            let wrong = with_mail(&fields).unwrap_err();
            assert_eq!(wrong.len(), must.len(), "{wrong:?}");
            for part in must {
                let part = format!("receivers[0].mail.{part}");
                assert!(
                    wrong.iter().any(|one| one.starts_with(&part)),
                    "{part}: {wrong:?}"
                );
            }
            assert!(!wrong.concat().contains("secret"), "{wrong:?}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let text = "
reciever: []
receivers:
- name: Chat
  slack: { url: 'https://chat.example.com/hooks/SECRET' }
- name: both
  slack: { urlEnv: MUSTER_TEST_NO_SUCH_VARIABLE, tokenFile: /no/such/file }
  webhook: {}
- name: hook
  webhook: { url: 'ftp://x', keyFile: /no/such/file, retries: 3 }
rules:
- on: [jobFailed, jobExploded]
  namespaces: ['*']
  receivers: [hook]
- receivers: []
waitingTooLong: soon
gatherFor: 2h
showErrors: maybe
";
        let wrong = parse(text).unwrap_err();
        let said = wrong.join("\n");
        for part in [
            "receivers[0].name: ",
            "receivers[0].slack.url: whoever knows",
            "receivers[1]: needs one of webhook, slack, alertmanager and mail",
            "receivers[2].webhook.url: must begin with https://",
            "receivers[2].webhook.key: read /no/such/file",
            "receivers[2].webhook.retries: is not known; known are caFile,",
            "rules[0].on[1]: \"jobExploded\" is not one of jobFailed,",
            "rules[0].namespaces[0]: ",
            "rules[1].on: name some of",
            "rules[1].receivers: name at least one receiver",
            "waitingTooLong: ",
            "gatherFor: must be at most 1h",
            "showErrors: must be true or false",
            "reciever: is not known; known are cluster, gatherFor, jobs, receivers,",
        ] {
            assert!(said.contains(part), "{part} is missing:\n{said}");
        }
        assert_eq!(wrong.len(), 14, "{said}");
        assert!(!said.contains("SECRET"));
        assert_eq!(parse("- a").unwrap_err().len(), 1);
        assert_eq!(parse("receivers: {").unwrap_err().len(), 1);
        let unknown = "receivers: [{ name: a, webhook: { url: 'http://a' } }]\nrules: [{ on: [jobFailed], receivers: [b] }]";
        assert_eq!(
            parse(unknown).unwrap_err(),
            ["rules[0].receivers[0]: there is no receiver \"b\""]
        );
    }
}

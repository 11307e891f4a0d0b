//! `muster config`: the user's contexts.

mod set_context;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{
    args::Format,
    context::Context,
    contexts::{Contexts, LOCAL},
    fail::Failure,
    output::{self, table::Table},
};

/// Show and choose contexts: the coordinators you use.
///
/// `muster login` adds a context. They are kept in ~/.config/muster/config.yaml, or in the file that
/// $MUSTER_CONFIG names. The context local is always there: it is the cluster of `muster local up`.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster config get-contexts
  muster config use-context local")]
pub(crate) struct Config {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    GetContexts(GetContexts),
    CurrentContext(CurrentContext),
    UseContext(UseContext),
    SetContext(Box<set_context::SetContext>),
    DeleteContext(DeleteContext),
}

/// List the contexts.
///
/// The current one has a star.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster config get-contexts
  muster config get-contexts -o json")]
struct GetContexts {}

/// Print the name of the current context.
///
/// Fails if none was chosen.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster config current-context")]
struct CurrentContext {}

/// Use a context from now on.
///
/// One command can use another with --context or $MUSTER_CONTEXT.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster config use-context prod
  muster config use-context local")]
struct UseContext {
    /// The context, as `muster config get-contexts` lists it
    name: String,
}

/// Forget a context and its credentials.
///
/// Nothing changes on the coordinator: to take the rights away, whoever runs it denies the user.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster config delete-context prod")]
struct DeleteContext {
    /// The context, as `muster config get-contexts` lists it
    name: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    name: &'a str,
    current: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
}

pub(crate) fn config(cx: &Context, args: Config) -> Result<(), Failure> {
    let mut contexts = Contexts::load()?;
    match args.command {
        ConfigCommand::GetContexts(_) => list(cx, &contexts),
        ConfigCommand::CurrentContext(_) => match contexts.current() {
            Some(name) => cx.print(&format!("{name}\n")),
            None => Err(Failure::request(
                "there is no current context; choose one with `muster config use-context NAME`",
            )),
        },
        ConfigCommand::UseContext(UseContext { name }) => {
            contexts.select(&name)?;
            cx.say(format!("the context is {name} now"));
            Ok(())
        }
        ConfigCommand::SetContext(args) => set_context::set_context(cx, contexts, *args),
        ConfigCommand::DeleteContext(DeleteContext { name }) => {
            contexts.remove(&name)?;
            cx.say(format!("context {name} is forgotten"));
            Ok(())
        }
    }
}

fn list(cx: &Context, contexts: &Contexts) -> Result<(), Failure> {
    let current = contexts.current().unwrap_or(LOCAL);
    let mut rows: Vec<Row<'_>> = contexts
        .all()
        .iter()
        .map(|(name, entry)| Row {
            name,
            current: name == current,
            server: Some(entry.address()),
            namespace: entry.namespace.as_deref(),
        })
        .collect();
    rows.push(Row {
        name: LOCAL,
        current: current == LOCAL,
        server: None,
        namespace: None,
    });
    match cx.format() {
        Format::Json => return cx.print(&output::json(&rows)),
        Format::Yaml => return cx.print(&output::yaml(&rows)),
        Format::Name => {
            let names: String = rows.iter().map(|row| format!("{}\n", row.name)).collect();
            return cx.print(&names);
        }
        Format::Table | Format::Wide => {}
    }
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                if row.current { "*" } else { "" }.to_owned(),
                row.name.to_owned(),
                row.server.unwrap_or("(this machine)").to_owned(),
                row.namespace.unwrap_or_default().to_owned(),
            ]
        })
        .collect();
    let mut table = Table::new(vec!["CURRENT", "NAME", "SERVER", "NAMESPACE"]);
    cx.print(&table.render(&rows, !cx.globals.no_headers))
}

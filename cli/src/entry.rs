//! From a parsed command line to an exit code.

use std::{ffi::OsString, process::ExitCode};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::{
    args::{Cli, Command},
    commands::{
        access, cancel, check, completion, config, convert, cordon, delete, describe, explain, get,
        history, login, logs, notify, plan, queue, replay, report,
        run::{
            self,
            prefix::{self, Rewritten},
            torchrun,
        },
        scale, signal, stacks, submit, suspend, top, topology, validate, version, wait, web,
    },
    context::Context,
    fail::Failure,
    kubectl, local, slurm, tips, verbs,
};

/// The command line as `muster run` reads it: without a launcher in front of the script, and without flags
/// of torchrun that have no meaning here. Also what to tell of that.
pub(crate) fn in_our_words(given: Vec<OsString>) -> (Vec<OsString>, Vec<String>) {
    let words = given.iter().map(|word| word.to_str().map(str::to_owned));
    let Some(words) = words.collect::<Option<Vec<String>>>() else {
        return (given, Vec::new());
    };
    let (mut words, mut left_out) = without_needless(words);
    let mut notes = Vec::new();
    let run = match read(&words).map(|cli| cli.command) {
        Ok(Command::Run(run)) => run,
        // What is wrong about the rest is told later.
        _ if left_out.is_empty() => return (given, Vec::new()),
        _ => {
            let words = words.into_iter().map(OsString::from).collect();
            return (words, vec![torchrun::told(&left_out)]);
        }
    };
    if let Some(Rewritten {
        words: new,
        notes: told,
    }) = prefix::rewrite(&words, &run)
    {
        notes = told;
        let (new, more) = without_needless(new);
        words = new;
        left_out.extend(more);
    }
    if !left_out.is_empty() {
        notes.push(torchrun::told(&left_out));
    }
    (words.into_iter().map(OsString::from).collect(), notes)
}

/// Takes flags of torchrun that have no meaning here out of a command line of `muster run`.
pub(crate) fn without_needless(
    mut words: Vec<String>,
) -> (Vec<String>, Vec<(String, &'static str)>) {
    let mut left_out = Vec::new();
    while let Err(error) = read(&words)
        && error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && let Some(why) = torchrun::needless(flag)
        && named(&words) == "run"
        && let Some((rest, taken)) = torchrun::without(&words, flag)
    {
        words = rest;
        left_out.push((taken, why));
    }
    (words, left_out)
}

/// The name of the command that the words name.
fn named(words: &[String]) -> String {
    let mut root = crate::command();
    root.build();
    let words = words.get(1..).unwrap_or_default();
    tips::named(&root, words).get_name().to_owned()
}

fn read(words: &[String]) -> Result<Cli, clap::Error> {
    crate::read(&words.iter().map(OsString::from).collect::<Vec<_>>())
}

/// `notes`: what was changed about the command line.
pub(crate) fn run(cli: Cli, notes: &[String]) -> ExitCode {
    let cx = Context::new(cli.globals);
    notes.iter().for_each(|note| cx.say(note));
    // One thread is enough: a command waits for one answer at a time.
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return report(&cx, Failure::request(format!("start: {error}"))),
    };
    let takes_interrupts = match &cli.command {
        Command::Run(run) => run.ends_its_cluster(),
        Command::Check(_) | Command::Slurm(_) | Command::Web(_) => true,
        _ => false,
    };
    let outcome = runtime.block_on(async {
        if takes_interrupts {
            return Box::pin(dispatch(&cx, cli.command)).await;
        }
        tokio::select! {
            outcome = Box::pin(dispatch(&cx, cli.command)) => outcome,
            _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted("interrupted; what was submitted goes on".into())),
        }
    });
    // Do not wait for the runtime's threads: a blocked lookup or read must not delay the exit.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&cx, failure),
    }
}

async fn dispatch(cx: &Context, command: Command) -> Result<(), Failure> {
    match command {
        Command::Submit(args) => submit::submit(cx, args).await,
        Command::Run(args) => run::run(cx, *args).await,
        Command::Get(args) => get::get(cx, args).await,
        Command::Describe(args) => describe::describe(cx, args).await,
        Command::Explain(args) => explain::explain(cx, args).await,
        Command::Report(args) => report::report(cx, args).await,
        Command::Logs(args) => logs::logs(cx, args).await,
        Command::Signal(args) => signal::signal(cx, args).await,
        Command::Stacks(args) => stacks::stacks(cx, args).await,
        Command::Scale(args) => scale::scale(cx, args).await,
        Command::Suspend(args) => suspend::suspend(cx, args).await,
        Command::Resume(args) => suspend::resume(cx, args).await,
        Command::Cancel(args) => cancel::cancel(cx, args).await,
        Command::Delete(args) => delete::delete(cx, args).await,
        Command::Wait(args) => wait::wait(cx, args).await,
        Command::Nodes(args) => get::nodes(cx, args).await,
        Command::Cordon(args) => cordon::cordon(cx, args).await,
        Command::Uncordon(args) => cordon::uncordon(cx, args).await,
        Command::Check(args) => check::check(cx, args).await,
        Command::Login(args) => login::login(cx, args).await,
        Command::WhoAmI(args) => access::whoami(cx, args).await,
        Command::Auth(args) => access::auth(cx, args).await,
        Command::Config(args) => config::config(cx, args),
        Command::Top(args) => top::top(cx, args).await,
        Command::Topology(args) => topology::topology(cx, args).await,
        Command::Events(args) => get::events(cx, args).await,
        Command::Web(args) => web::web(cx, args).await,
        Command::History(args) => history::history(cx, args).await,
        Command::Notify(args) => notify::notify(cx, args).await,
        Command::Plan(args) => plan::plan(cx, args).await,
        Command::Queue(args) => queue::queue(cx, args).await,
        Command::Validate(args) => validate::validate(cx, args),
        Command::Convert(args) => convert::convert(cx, &args),
        Command::Replay(args) => replay::replay(cx, args),
        Command::Local(args) => local::run(cx, args).await,
        Command::Slurm(args) => slurm::run(cx, args).await,
        Command::Completion(args) => completion::completion(cx, args),
        Command::Man(args) => completion::man(args),
        Command::Version(args) => version::version(cx, args).await,
        Command::Detach(args) => local::detach(&args),
        Command::Bound(args) => kubectl::bound(&args),
    }
}

fn report(cx: &Context, failure: Failure) -> ExitCode {
    let code = failure.code();
    match failure {
        Failure::OutputClosed => {}
        Failure::BadJob(lines) => cx.warn(lines),
        other => cx.warn(format!("error: {other}")),
    }
    ExitCode::from(code)
}

/// Prints clap's error, or the help that the user asked for. An unknown flag gets our own tip, or
/// none: clap guesses far, and names spellings that are only there for the habits of others.
///
/// `words`: the command line that was refused.
pub(crate) fn refuse(mut error: clap::Error, words: &[OsString]) -> ExitCode {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(tip) = verbs::instead(verb)
    {
        error.remove(ContextKind::SuggestedSubcommand);
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tip);
    }
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
    {
        let words = words.iter().skip(1);
        let words: Vec<String> = words
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let mut root = crate::command();
        root.build();
        let tip = tips::tip(&root, &words, flag);
        // clap shows its guess in the usage too.
        let usage = tips::named(&root, &words).clone().render_usage();
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
        if let Some(tip) = tip {
            error.insert(
                ContextKind::Suggested,
                ContextValue::StyledStrs(vec![tip.into()]),
            );
        }
    }
    // Help and version go to stdout and are no failure. Ignore an error: nothing can be done about
    // a closed pipe.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

//! Which address has which page. All are read with GET; nothing is changed by any.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    extract::{Path, Query, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use muster_page::{Choice, Frame, waiting};
use muster_proto::v1::JobRef;
use muster_rpc::credentials::now_us;

use super::{
    asked::{self, Unanswered},
    door::{Door, Knock, Refusal},
    shared::Pages,
};
use crate::{
    connect::Client,
    output::{self, List, document},
};

/// What every page needs.
pub(crate) struct Site {
    pub(crate) client: Client,
    /// The coordinator, as it is shown.
    pub(crate) server: String,
    /// Only jobs and events of this namespace; empty: of all.
    pub(crate) namespace: String,
    pub(crate) door: Door,
    pub(crate) pages: Pages,
    /// Called with a new ticket when one was used.
    pub(crate) used: Box<dyn Fn(&str) + Send + Sync>,
}

/// Nothing is loaded from elsewhere, nothing runs but our script, and no other site may show a page of ours or read one.
const HEADERS: [(&str, &str); 8] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types muster",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-frame-options", "DENY"),
    ("cache-control", "no-store"),
    ("vary", "cookie"),
];

type Shared = State<Arc<Site>>;
type Asked = Query<HashMap<String, String>>;

pub(crate) fn router(site: Arc<Site>) -> Router {
    let inside = Router::new()
        .route("/", get(jobs))
        .route("/jobs.json", get(jobs_json))
        .route("/jobs/{namespace}/{name}", get(job))
        .route("/jobs/{namespace}/{name}/logs", get(logs))
        .route("/jobs/{namespace}/{name}/report.html", get(report))
        .route("/queue", get(queue))
        .route("/queue.json", get(queue_json))
        .route("/queues.json", get(queues_json))
        .route("/nodes", get(nodes))
        .route("/nodes.json", get(nodes_json))
        .route("/nodes/{name}", get(node))
        .route("/goodput", get(goodput))
        .route("/events", get(events))
        .route("/events.json", get(events_json))
        .fallback(nowhere)
        .layer(middleware::from_fn_with_state(site.clone(), share))
        .layer(middleware::from_fn_with_state(site.clone(), guard));
    Router::new()
        .route("/open", get(open))
        .route("/assets/style.css", get(style))
        .route("/assets/live.js", get(script))
        .merge(inside)
        .layer(middleware::map_response(with_headers))
        .with_state(site)
}

async fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        let headers = response.headers_mut();
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    response
}

fn knock(headers: &HeaderMap) -> Knock<'_> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    Knock {
        host: text(header::HOST),
        cookies: text(header::COOKIE),
    }
}

async fn guard(State(site): Shared, request: Request, next: Next) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return refused(
            StatusCode::METHOD_NOT_ALLOWED,
            "These pages can only be read",
            "Nothing was changed.",
            "Use the command line for changes.",
        );
    }
    match site.door.may_enter(knock(request.headers())) {
        Ok(()) => next.run(request).await,
        Err(refusal) => outside(&refusal),
    }
}

/// Pages look again and again, and are shared. JSON and files are asked for once, and may be large.
async fn share(State(site): Shared, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_page = !path.ends_with(".json") && !path.ends_with(".html");
    if *request.method() != Method::GET || !is_page {
        return next.run(request).await;
    }
    let address = request.uri().to_string();
    site.pages.get(&address, next.run(request)).await
}

async fn open(State(site): Shared, Query(asked): Asked, headers: HeaderMap) -> Response {
    let ticket = asked.get("ticket").map_or("", String::as_str);
    let cookie = match site.door.open(knock(&headers), ticket) {
        Ok(cookie) => cookie,
        // A link that was opened before, in the browser that was let in.
        Err(Refusal::BadTicket) if site.door.may_enter(knock(&headers)).is_ok() => {
            return to(asked.get("to"), None);
        }
        Err(refusal) => return outside(&refusal),
    };
    (site.used)(&site.door.ticket());
    to(asked.get("to"), Some(cookie))
}

/// Sends the browser to a page of ours.
fn to(path: Option<&String>, cookie: Option<String>) -> Response {
    let path = path
        .filter(|path| path.starts_with('/') && !path.starts_with("//") && !path.contains('\\'));
    let path = path.map_or("/", String::as_str);
    let place = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static("/"));
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, place)]).into_response();
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::from_str(&cookie).ok()) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

fn outside(refusal: &Refusal) -> Response {
    let (title, why) = match refusal {
        Refusal::OtherHost => (
            "Wrong address",
            "These pages are for this machine alone, under 127.0.0.1 or localhost.",
        ),
        Refusal::Unknown => (
            "Not let in",
            "This browser was not let in by the program that serves these pages.",
        ),
        Refusal::BadTicket => (
            "This link was used before",
            "Each link that muster web prints is good for one browser.",
        ),
    };
    refused(
        StatusCode::FORBIDDEN,
        title,
        why,
        "Open the newest link that muster web has printed in its terminal.",
    )
}

fn refused(status: StatusCode, title: &str, why: &str, next: &str) -> Response {
    (status, html(muster_page::refused(title, why, next))).into_response()
}

fn html(text: String) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], text)
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

async fn style() -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "text/css; charset=utf-8")],
        muster_page::STYLE,
    )
}

async fn script() -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "text/javascript; charset=utf-8")],
        muster_page::LIVE,
    )
}

async fn nowhere() -> Response {
    refused(
        StatusCode::NOT_FOUND,
        "No such page",
        "There is nothing at this address.",
        "",
    )
}

impl IntoResponse for Unanswered {
    fn into_response(self) -> Response {
        match self {
            Unanswered::NotFound(why) => refused(
                StatusCode::NOT_FOUND,
                "Not there",
                &why,
                "It may have been deleted.",
            ),
            Unanswered::Refused(why) => refused(
                StatusCode::FORBIDDEN,
                "Not allowed",
                &why,
                "Ask who runs the coordinator for a role.",
            ),
            Unanswered::Failed(why) => refused(
                StatusCode::BAD_GATEWAY,
                "No answer",
                &why,
                "Load this page again in a moment.",
            ),
        }
    }
}

impl Site {
    fn frame<'a>(&'a self, uri: &'a Uri) -> Frame<'a> {
        Frame {
            server: &self.server,
            now_us: now_us(),
            path: uri.path(),
        }
    }
}

fn choice(asked: &HashMap<String, String>) -> Choice {
    let text = |name: &str| asked.get(name).cloned().unwrap_or_default();
    Choice {
        text: text("q"),
        page: text("page").parse().unwrap_or(0),
        warnings: !text("warnings").is_empty(),
    }
}

async fn jobs(State(site): Shared, uri: Uri, Query(asked): Asked) -> Result<Response, Unanswered> {
    let jobs = asked::jobs(&site.client, &site.namespace).await?;
    Ok(html(muster_page::jobs(site.frame(&uri), &jobs, &choice(&asked))).into_response())
}

async fn jobs_json(State(site): Shared) -> Result<Response, Unanswered> {
    let jobs = asked::jobs(&site.client, &site.namespace).await?;
    let jobs = jobs.into_iter().map(document::Job::from).collect();
    Ok(json(output::json(&List::<document::Job>::new(jobs))))
}

/// The name of a page, without the end that asks for another form of it.
fn asks_json(name: &str) -> (&str, bool) {
    match name.strip_suffix(".json") {
        Some(name) => (name, true),
        None => (name, false),
    }
}

async fn job(
    State(site): Shared,
    uri: Uri,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, Unanswered> {
    let (name, as_json) = asks_json(&name);
    let story = asked::story(&site.client, reference(&namespace, name)).await?;
    Ok(match as_json {
        true => json(output::json(&document::Explanation::from(story.explained))),
        false => html(muster_page::job(site.frame(&uri), &story)).into_response(),
    })
}

fn reference(namespace: &str, name: &str) -> JobRef {
    JobRef {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

async fn report(
    State(site): Shared,
    uri: Uri,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, Unanswered> {
    let story = asked::story(&site.client, reference(&namespace, &name)).await?;
    let file = format!("attachment; filename=\"{namespace}-{name}.html\"");
    let file = HeaderValue::from_str(&file).unwrap_or(HeaderValue::from_static("attachment"));
    let page = html(muster_page::report(site.frame(&uri), &story));
    Ok(([(header::CONTENT_DISPOSITION, file)], page).into_response())
}

async fn logs(
    State(site): Shared,
    uri: Uri,
    Path((namespace, name)): Path<(String, String)>,
    Query(asked): Asked,
) -> Result<Response, Unanswered> {
    let rank = asked.get("rank").and_then(|rank| rank.parse().ok());
    let story = asked::story(&site.client, reference(&namespace, &name)).await?;
    let status = story.explained.job.and_then(|job| job.status);
    let lines = asked::logs(&site.client, reference(&namespace, &name), rank).await?;
    let ranks = status.map_or(0, |status| status.ranks.len() as u32);
    let frame = site.frame(&uri);
    Ok(html(muster_page::logs(
        frame, &namespace, &name, rank, ranks, &lines,
    ))
    .into_response())
}

async fn queue(State(site): Shared, uri: Uri, Query(asked): Asked) -> Result<Response, Unanswered> {
    let story = asked::queue(&site.client, &site.namespace).await?;
    Ok(html(muster_page::queue(
        site.frame(&uri),
        &story,
        &choice(&asked),
    ))
    .into_response())
}

async fn queue_json(State(site): Shared) -> Result<Response, Unanswered> {
    let story = asked::queue(&site.client, &site.namespace).await?;
    let mut waiting = waiting::in_order(&story.jobs, &story.queues.order, &story.namespace);
    waiting::add_starts(&mut waiting, &story.queues.starts);
    Ok(json(output::json(&List::new(output::queue::documents(
        &waiting,
    )))))
}

async fn queues_json(State(site): Shared) -> Result<Response, Unanswered> {
    let queues = asked::queues(&site.client).await?;
    Ok(json(output::json(&List::new(output::queues::all(&queues)))))
}

async fn nodes(State(site): Shared, uri: Uri, Query(asked): Asked) -> Result<Response, Unanswered> {
    let choice = choice(&asked);
    let story = asked::fleet(&site.client, &choice).await?;
    Ok(html(muster_page::fleet(site.frame(&uri), &story, &choice)).into_response())
}

async fn nodes_json(State(site): Shared) -> Result<Response, Unanswered> {
    let nodes = asked::nodes(&site.client).await?;
    let nodes = nodes.into_iter().map(document::Node::from).collect();
    Ok(json(output::json(&List::<document::Node>::new(nodes))))
}

async fn node(
    State(site): Shared,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Unanswered> {
    // The name of a host may end like that.
    let (node, as_json) = match asked::node(&site.client, &name).await {
        Ok(node) => (node, false),
        Err(Unanswered::NotFound(why)) => match asks_json(&name) {
            (name, true) => (asked::node(&site.client, name).await?, true),
            _ => return Err(Unanswered::NotFound(why)),
        },
        Err(why) => return Err(why),
    };
    if as_json {
        return Ok(json(output::json(&document::Node::from(node))));
    }
    let events = asked::events(&site.client, "", &node.name).await?;
    Ok(html(muster_page::node(site.frame(&uri), &node, &events)).into_response())
}

async fn goodput(State(site): Shared, uri: Uri) -> Result<Response, Unanswered> {
    let jobs = asked::jobs(&site.client, &site.namespace).await?;
    Ok(html(muster_page::goodput(site.frame(&uri), &jobs)).into_response())
}

async fn events(
    State(site): Shared,
    uri: Uri,
    Query(asked): Asked,
) -> Result<Response, Unanswered> {
    let events = asked::events(&site.client, &site.namespace, "").await?;
    Ok(html(muster_page::events(
        site.frame(&uri),
        &events,
        &choice(&asked),
    ))
    .into_response())
}

async fn events_json(State(site): Shared) -> Result<Response, Unanswered> {
    let events = asked::events(&site.client, &site.namespace, "").await?;
    let events = events.into_iter().map(document::Event::from).collect();
    Ok(json(output::json(&List::<document::Event>::new(events))))
}

//! `muster.v1.JobService`.

use muster_core::{
    fleet::{Actor, Request as FleetRequest, view::JobView},
    id::{JobName, JobUid, label_error},
};
use muster_proto::{convert::jobs as wire, v1};
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::{
    authorize::rights,
    context::Context,
    environment, explain,
    feed::Feed,
    job::{job_name, no_such, shown, shown_with_time},
    logs, page, signal, stacks, status, wait,
    watch::{Kind, follow},
};
use crate::trust::Rights;

/// Bytes of the longest idempotency key. A UUID has 36 characters, and some clients put a prefix
/// before it.
const REQUEST_ID_MAX: usize = 128;

#[derive(Clone, Debug)]
pub(crate) struct Jobs(pub Context);

#[tonic::async_trait]
impl v1::job_service_server::JobService for Jobs {
    async fn submit(
        &self,
        request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        let mut rights = rights(&request)?;
        let v1::SubmitRequest {
            r#ref,
            spec,
            request_id,
            validate_only,
        } = request.into_inner();
        if request_id.len() > REQUEST_ID_MAX || !request_id.chars().all(|c| c.is_ascii_graphic()) {
            return Err(status::invalid(
                "request_id",
                format!("must be at most {REQUEST_ID_MAX} printable ASCII characters"),
            ));
        }
        let (name, spec) = wire::document(r#ref, spec)
            .check()
            .map_err(|errors| status::fields(&errors))?;
        rights.may_touch_job(&name).await?;
        if validate_only {
            rights.note.set_what("submit --dry-run=server");
        }
        let uid = JobUid::from(Uuid::now_v7().to_string());
        let request = FleetRequest::Submit {
            name,
            spec,
            uid,
            request_id,
            validate_only,
        };
        let answer = self.0.handle.request(rights.actor(""), request).await;
        let told = status::submitted(answer.map_err(status::no_answer)?)?;
        let sees = |job: &JobName| rights.scope.has(&job.namespace);
        let plan = told.plan.as_deref();
        Ok(Response::new(v1::SubmitResponse {
            job: Some(shown(&rights, &told.job)),
            existed: told.existed,
            plan: plan.map(|plan| wire::plan_to_wire(plan, sees)),
        }))
    }

    async fn get(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let mut rights = rights(&request)?;
        let name = job_name(&mut rights, request.into_inner().r#ref).await?;
        let view = self.0.handle.job(&name).ok_or_else(|| no_such(&name))?;
        let job = shown_with_time(&rights, &view, self.0.handle.now());
        Ok(Response::new(v1::GetJobResponse {
            job: Some(self.0.usages.of_job(job)),
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let mut rights = rights(&request)?;
        let request = request.into_inner();
        let namespace = namespace(&mut rights, &request.namespace).await?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(read_token(token).ok_or_else(page::bad_token)?),
        };
        let now = self.0.handle.now();
        let jobs = self.0.handle.jobs();
        let jobs = jobs.borrow();
        let items = jobs
            .after(after.as_ref())
            .filter(|(name, _)| {
                rights.scope.has(&name.namespace)
                    && namespace
                        .as_ref()
                        .is_none_or(|namespace| name.namespace == *namespace)
            })
            .map(|(name, view)| {
                let job = shown_with_time(&rights, view, now);
                (name, self.0.usages.of_job(job))
            });
        let (jobs, next) = page::fill(page::size(request.page_size), items);
        Ok(Response::new(v1::ListJobsResponse {
            jobs,
            next_page_token: next.map(ToString::to_string).unwrap_or_default(),
        }))
    }

    type WatchStream = Feed<v1::WatchJobsResponse>;

    async fn watch(
        &self,
        request: Request<v1::WatchJobsRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut rights = rights(&request)?;
        let v1::WatchJobsRequest {
            namespace: space,
            name,
        } = request.into_inner();
        let wanted: Box<dyn Fn(&JobName) -> bool + Send + Sync> = if name.is_empty() {
            let space = namespace(&mut rights, &space).await?;
            let scope = rights.scope.clone();
            Box::new(move |key| {
                scope.has(&key.namespace)
                    && space.as_ref().is_none_or(|space| key.namespace == *space)
            })
        } else {
            let name = wire::job_name(
                "",
                Some(v1::JobRef {
                    namespace: space,
                    name,
                }),
            )
            .map_err(|error| {
                // The request has the two fields of a reference, but not the reference itself.
                status::invalid(error.field.trim_start_matches('.'), error.message)
            })?;
            rights.may_touch_job(&name).await?;
            if self.0.handle.job(&name).is_none() {
                return Err(no_such(&name));
            }
            Box::new(move |key| *key == name)
        };
        let usages = self.0.usages.clone();
        let caller = rights.clone();
        let kind = Kind {
            wanted,
            identity: |view: &JobView| view.record.uid.as_str(),
            changed: Box::new(move |view| v1::WatchJobsResponse {
                job: Some(usages.of_job(shown(&rights, view))),
                deleted: false,
            }),
            gone: |name, uid| v1::WatchJobsResponse {
                job: Some(v1::Job {
                    r#ref: Some(wire::job_ref(name)),
                    uid: uid.to_owned(),
                    ..v1::Job::default()
                }),
                deleted: true,
            },
        };
        let jobs = self.0.handle.jobs();
        Ok(Response::new(
            self.0
                .feed(caller, "watch jobs", |out| follow(jobs, kind, out)),
        ))
    }

    async fn scale(
        &self,
        request: Request<v1::ScaleRequest>,
    ) -> Result<Response<v1::ScaleResponse>, Status> {
        let mut rights = rights(&request)?;
        let v1::ScaleRequest { r#ref, nodes } = request.into_inner();
        let name = job_name(&mut rights, r#ref).await?;
        let (view, _) = self
            .ask(rights.actor(""), FleetRequest::Scale { name, nodes })
            .await?;
        Ok(Response::new(v1::ScaleResponse {
            job: Some(shown(&rights, &view)),
        }))
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelResponse>, Status> {
        let mut rights = rights(&request)?;
        let name = job_name(&mut rights, request.into_inner().r#ref).await?;
        let (view, _) = self
            .ask(rights.actor(""), FleetRequest::Cancel { name })
            .await?;
        Ok(Response::new(v1::CancelResponse {
            job: Some(shown(&rights, &view)),
        }))
    }

    async fn suspend(
        &self,
        request: Request<v1::SuspendRequest>,
    ) -> Result<Response<v1::SuspendResponse>, Status> {
        let mut rights = rights(&request)?;
        let name = job_name(&mut rights, request.into_inner().r#ref).await?;
        let suspended = true;
        let (view, _) = self
            .ask(rights.actor(""), FleetRequest::Suspend { name, suspended })
            .await?;
        Ok(Response::new(v1::SuspendResponse {
            job: Some(shown(&rights, &view)),
        }))
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeRequest>,
    ) -> Result<Response<v1::ResumeResponse>, Status> {
        let mut rights = rights(&request)?;
        let name = job_name(&mut rights, request.into_inner().r#ref).await?;
        let suspended = false;
        let (view, _) = self
            .ask(rights.actor(""), FleetRequest::Suspend { name, suspended })
            .await?;
        Ok(Response::new(v1::ResumeResponse {
            job: Some(shown(&rights, &view)),
        }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let mut rights = rights(&request)?;
        let name = job_name(&mut rights, request.into_inner().r#ref).await?;
        let answer = self
            .0
            .handle
            .request(rights.actor(""), FleetRequest::Delete { name })
            .await
            .map_err(status::no_answer)?;
        status::done(answer)?;
        Ok(Response::new(v1::DeleteResponse {}))
    }

    type LogsStream = Feed<v1::LogsResponse>;

    async fn logs(
        &self,
        request: Request<v1::LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        let mut rights = rights(&request)?;
        let logs = logs::Logs::open(&self.0, &mut rights, request.into_inner()).await?;
        let feed = self.0.feed(rights, "logs", |out| logs.run(out));
        Ok(Response::new(feed))
    }

    async fn signal(
        &self,
        request: Request<v1::SignalRequest>,
    ) -> Result<Response<v1::SignalResponse>, Status> {
        let mut rights = rights(&request)?;
        let sent = signal::signal(&self.0, &mut rights, request.into_inner()).await?;
        Ok(Response::new(sent))
    }

    async fn stacks(
        &self,
        request: Request<v1::StacksRequest>,
    ) -> Result<Response<v1::StacksResponse>, Status> {
        let mut rights = rights(&request)?;
        let found = stacks::stacks(&self.0, &mut rights, request.into_inner()).await?;
        Ok(Response::new(found))
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::ExplainResponse>, Status> {
        let mut rights = rights(&request)?;
        let name = job_name(&mut rights, request.into_inner().r#ref).await?;
        let view = self.0.handle.job(&name).ok_or_else(|| no_such(&name))?;
        let events = self.0.handle.events();
        let response = explain::explain(&rights, &view, &events.borrow(), self.0.handle.now());
        Ok(Response::new(response))
    }

    async fn environment(
        &self,
        request: Request<v1::EnvironmentRequest>,
    ) -> Result<Response<v1::EnvironmentResponse>, Status> {
        let mut rights = rights(&request)?;
        let name = job_name(&mut rights, request.into_inner().r#ref).await?;
        let view = self.0.handle.job(&name).ok_or_else(|| no_such(&name))?;
        let sees_values = rights.sees_environment(view.record.owner.as_ref());
        let answer = environment::answer(&view, sees_values, |node| self.0.handle.node(node));
        answer.map(Response::new).ok_or_else(|| {
            Status::failed_precondition(format!(
                "job {name} has no generation yet, so nothing has been decided; see muster get jobs"
            ))
        })
    }

    async fn wait(
        &self,
        request: Request<v1::WaitRequest>,
    ) -> Result<Response<v1::WaitResponse>, Status> {
        let mut rights = rights(&request)?;
        let job = wait::wait(&self.0, &mut rights, request.into_inner()).await?;
        Ok(Response::new(v1::WaitResponse { job: Some(job) }))
    }
}

impl Jobs {
    async fn ask(
        &self,
        actor: Actor,
        request: FleetRequest,
    ) -> Result<(Box<JobView>, bool), Status> {
        status::job(
            self.0
                .handle
                .request(actor, request)
                .await
                .map_err(status::no_answer)?,
        )
    }
}

/// The namespace that a list is limited to, if the caller's role is for it. `None`: all that the
/// role is for.
async fn namespace(rights: &mut Rights, text: &str) -> Result<Option<String>, Status> {
    match text {
        "" => {
            rights.may_touch(None).await?;
            Ok(None)
        }
        text => match label_error(text) {
            Some(message) => Err(status::invalid("namespace", message)),
            None => {
                rights.may_touch(Some(text)).await?;
                Ok(Some(text.to_owned()))
            }
        },
    }
}

fn read_token(token: &str) -> Option<JobName> {
    let (namespace, name) = token.split_once('/')?;
    let well_formed = label_error(namespace).is_none() && label_error(name).is_none();
    well_formed.then(|| JobName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

//! Whether containerd is there. Its event stream tells: while it is open, so is the connection. When it ends the core is
//! told that the runtime is down, and once containerd answers again, everything is read anew (invariant 3).
//!
//! The events themselves are only hints that a task under another shim than ours has ended; that is then looked up. Where nothing is left to
//! be found they are all that tells how it ended.

use std::{collections::BTreeSet, time::Duration};

use berth_core::{
    event::Event,
    id::{ContainerId, SandboxId},
    observation::Exit,
};
use containerd_client::{events::TaskExit, services::v1::SubscribeRequest, types::Envelope};
use jiff::Timestamp;
use prost::Message;
use tokio::sync::mpsc;

use super::{CallError, Cause, ConnectError, Containerd, GroupedTasks, Shims, observe};
use crate::{causes::with_causes, clock, config::Config};

/// First wait before containerd is tried again; doubled up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(100);

/// Longest wait before containerd is tried again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Time between two looks at a containerd that is watched.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// How long a starting agent waits for containerd, which may be starting too.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Connects, waiting for a containerd that is still starting.
///
/// # Errors
/// When it is too old, or does not answer within a minute.
pub async fn connect(config: &Config) -> Result<Containerd, ConnectError> {
    let deadline = tokio::time::Instant::now() + START_PATIENCE;
    let mut delay = RETRY_MIN;
    let mut told = false;
    loop {
        let namespace = &config.containerd_namespace;
        match Containerd::connect(&config.containerd_socket, namespace, config.runtime_timeout).await {
            Err(error @ ConnectError::Unreachable(..)) if tokio::time::Instant::now() + delay < deadline => {
                if !std::mem::replace(&mut told, true) {
                    let patience = START_PATIENCE.as_secs();
                    tracing::warn!(
                        error = with_causes(&error),
                        "containerd is waited for, up to {patience} s"
                    );
                }
            }
            result => return result,
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(RETRY_MAX);
    }
}

/// The task that watches containerd.
#[derive(Debug)]
pub struct Watch {
    /// What is watched.
    pub containerd: Containerd,
    /// Followed anew after each observation.
    pub shims: Shims,
    /// Containers whose exits only containerd tells of.
    pub grouped: GroupedTasks,
    /// Where it is reported.
    pub events: mpsc::Sender<Event>,
}

impl Watch {
    /// Watches until the agent stops.
    pub async fn run(self) {
        loop {
            let why = with_causes(&self.follow().await);
            tracing::warn!(why, "containerd is lost");
            self.containerd.shifting().forget();
            if self.events.send(Event::RuntimeDown { why }).await.is_err() {
                return;
            }
            self.recover().await;
        }
    }

    /// Watches until the connection ends, or containerd does not answer in time.
    async fn follow(&self) -> CallError {
        tokio::select! {
            why = self.read_events() => why,
            why = self.look() => why,
        }
    }

    /// Looks at what ended while nobody listened, and whether containerd answers at all: its events do not tell, since a
    /// stream without any does not even begin.
    async fn look(&self) -> CallError {
        loop {
            self.grouped.look_at_all(&self.containerd, &self.events).await;
            if let Err(error) = self.containerd.version().await {
                return error;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn read_events(&self) -> CallError {
        let request = SubscribeRequest { filters: vec!["topic==\"/tasks/exit\"".to_owned()] };
        let mut client = self.containerd.events();
        let failed = |cause| CallError::new("watch events", "", cause);
        let mut stream = match client.subscribe(request).await {
            Ok(response) => response.into_inner(),
            Err(status) => return failed(Cause::from(status)),
        };
        loop {
            match stream.message().await {
                Ok(Some(envelope)) => self.hint(&envelope).await,
                Ok(None) => return failed(Cause::Unreachable("the stream ended".to_owned())),
                Err(status) => return failed(Cause::from(status)),
            }
        }
    }

    async fn hint(&self, envelope: &Envelope) {
        let Some(event) = envelope.event.as_ref() else { return };
        let Ok(told) = TaskExit::decode(event.value.as_slice()) else { return };
        if told.id != told.container_id {
            return;
        }
        let finished_at = told.exited_at.as_ref().and_then(clock::of_proto).unwrap_or_else(Timestamp::now);
        let exit = Exit { code: told.exit_status, started_at: None, finished_at, oom_killed: false };
        let id = ContainerId::from_known(told.container_id);
        self.grouped.look_at(&id, Some(exit), &self.containerd, &self.events).await;
    }

    /// Sandboxes that the agent has to do with.
    fn known(&self) -> BTreeSet<SandboxId> {
        self.shims.followed().into_iter().chain(self.grouped.sandboxes()).collect()
    }

    /// Waits until containerd answers and tells the core what there is.
    async fn recover(&self) {
        let mut delay = RETRY_MIN;
        loop {
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RETRY_MAX);
            match observe(&self.containerd, &self.shims, self.known()).await {
                Ok(found) => {
                    tracing::info!("containerd is back");
                    found.shims.iter().for_each(|id| self.shims.follow(id));
                    drop(self.events.send(Event::RuntimeUp(found.observation)).await);
                    return;
                }
                Err(error) => tracing::debug!(error = with_causes(&error), "containerd is not back yet"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use berth_core::observation::SandboxReport;
    use containerd_client::{connect as to, to_any};
    use tempfile::TempDir;
    use tokio::net::UnixListener;

    use super::*;
    use crate::runtime::fake::{Ending, Fake};

    /// Far longer than the deadline of a call.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_containerd_that_says_nothing_is_lost_in_time() {
        let dir = TempDir::new().unwrap();
        let socket = dir.path().join("containerd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut mute = Vec::new();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                mute.push(connection);
            }
        });
        let containerd = Containerd::unasked(to(&socket).await.unwrap(), Duration::from_millis(200));
        let (events, _received) = mpsc::channel(1);
        let shims = Shims::new("/nonexistent", &socket, events.clone());
        let watch = Watch { containerd: containerd.clone(), shims, grouped: GroupedTasks::default(), events };
        let why = tokio::time::timeout(LONG, watch.follow()).await.expect("an end");
        assert!(with_causes(&why).contains("no answer"), "{}", with_causes(&why));

        let never = std::future::pending::<Result<Option<()>, tonic::Status>>();
        let next = tokio::time::timeout(LONG, containerd.next("read", "", never)).await.expect("an end");
        assert_eq!(next.unwrap_err().kind(), berth_core::failure::FailureKind::Unknown);
    }

    /// Of a container whose shim is gone the event is all that there is.
    #[tokio::test]
    async fn an_event_tells_at_once_how_a_container_ended_and_not_an_exec() {
        let fake = Fake::answering(&[] as &[TaskExit], Ending::NotFound).await;
        let (events, mut received) = mpsc::channel(1);
        let shims = Shims::new("/nonexistent", Path::new("/nonexistent"), events.clone());
        let grouped = GroupedTasks::default();
        let (id, sandbox) = (ContainerId::from_known("c"), SandboxId::from_known("s"));
        grouped.begun(&id, &sandbox);
        let watch = Watch { containerd: fake.containerd.clone(), shims, grouped, events };
        let told = |id: &str| {
            let exited_at = Some(prost_types::Timestamp { seconds: 7, nanos: 0 });
            let exit = TaskExit {
                id: id.into(),
                container_id: "c".into(),
                exit_status: 3,
                exited_at,
                ..TaskExit::default()
            };
            Envelope { event: Some(to_any(&exit)), topic: "/tasks/exit".into(), ..Envelope::default() }
        };
        watch.hint(&told("exec")).await;
        assert!(received.try_recv().is_err(), "an exec ended");
        watch.hint(&told("c")).await;
        let finished_at = Timestamp::from_second(7).unwrap();
        let exit = Exit { code: 3, started_at: None, finished_at, oom_killed: false };
        let report = SandboxReport::Exited { id, exit };
        assert_eq!(received.try_recv().unwrap(), Event::Sandbox { id: sandbox, report });
    }
}

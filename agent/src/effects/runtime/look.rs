//! What became of a start that nobody answered.

use std::sync::Arc;

use berth_core::{
    event::Outcome, failure::Failure, observation::ObservedTask, pod::port::start::TaskRequest,
};

use super::{handlers, port::Runtime};
use crate::effects::{failure::sandbox_gone, host::Host};

/// Looks at a task, and makes sure that its end is told. Containerd need not be there for a pod under our own shim.
pub(in crate::effects) async fn at_task(host: &Arc<Host>, request: &TaskRequest) -> Result<Outcome, Failure> {
    let handler = handlers::of_sandbox(host, &request.pod, &request.sandbox).await?;
    let runtime = Runtime::of(host, &handler);
    let task = runtime.task(&request.sandbox, &request.id).await?;
    let task = task.ok_or_else(|| sandbox_gone(&request.sandbox))?;
    if let ObservedTask::Running { .. } = task {
        runtime.follow(&request.sandbox, &request.id);
    }
    Ok(Outcome::Task(task))
}

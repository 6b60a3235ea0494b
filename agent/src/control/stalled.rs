//! Logs whose disk does not answer, as the pod's shim tells of them.

use std::{path::Path, time::Duration};

use berth_core::{config::Paths, paths};
use berth_proto::{
    client::{CallError, ShimClient},
    shim::Task,
};

use super::object::StalledLogObject;
use crate::{clock, view::PodView};

/// Longest wait for the shim. What else is known of the pod is shown without its answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Containers of a pod that wait for the disk of their log. None when the shim does not answer.
pub(super) async fn logs(view: &PodView, paths: &Paths) -> Vec<StalledLogObject> {
    let Some(sandbox) = &view.sandbox else { return Vec::new() };
    let socket = paths::shim_socket(&paths.run, sandbox);
    let Ok(Ok(tasks)) = tokio::time::timeout(ANSWER_MAX, ask(Path::new(&socket))).await else {
        return Vec::new();
    };
    of_tasks(view, &tasks)
}

async fn ask(socket: &Path) -> Result<Vec<Task>, CallError> {
    Ok(ShimClient::connect(socket).await?.state().await?.tasks)
}

fn of_tasks(view: &PodView, tasks: &[Task]) -> Vec<StalledLogObject> {
    let stalled = view.status.all_containers().filter_map(|status| {
        let id = status.id.as_ref()?.as_str();
        let since = clock::wall(tasks.iter().find(|task| task.id == id)?.log_stalled_since)?;
        Some(StalledLogObject { container: status.name.to_string(), since })
    });
    stalled.collect()
}

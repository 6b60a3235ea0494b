//! The machine of the node against a model of the world: scripted lives (`golden`) and random ones (`random`).

mod golden;
mod pods;
mod random;
mod run;
mod tell;
mod world;

//! placeholder
pub struct Sensor;

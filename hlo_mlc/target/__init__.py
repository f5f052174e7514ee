"""What a device is: plain numbers that code generation, schedules and cost models are made from."""

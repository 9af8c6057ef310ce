"""What solvers do for gpuq. Importing a module of this package costs little; the solver is loaded when first asked."""

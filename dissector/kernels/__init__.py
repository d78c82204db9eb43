"""What all stages share: kernels run interpreted or compiled, their machine code in files, pools of rows, limits."""

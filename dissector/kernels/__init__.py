"""What all stages share: kernels, interpreted or compiled; their machine code in files; pools of rows; limits."""
